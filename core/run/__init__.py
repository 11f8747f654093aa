"""One run: prepared, trained, recorded in its folder, exported, resumed."""
