"""The way in from elsewhere: settings of transformers' Trainer and its example scripts become a spec."""
