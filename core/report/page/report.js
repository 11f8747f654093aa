"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, text = "", name = "") => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (name) element.className = name;
    return element;
  };
  const show = (value) => {
    if (typeof value !== "number") return String(value ?? "");
    if (Number.isInteger(value)) return value.toLocaleString("en-US");
    const size = Math.abs(value);
    return size < 1e-3 || size >= 1e7 ? value.toPrecision(4) : String(Number(value.toPrecision(5)));
  };

  // Files: every table and figure can be downloaded.
  const quote = (cell) => (/[",\n\r]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell ?? ""));
  const download = (name, rows) => {
    const text = rows.map((row) => row.map(quote).join(",")).join("\r\n") + "\r\n";
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = `${name.replaceAll(/[^\w.-]+/g, "-")}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  // Figures: numbers as a table, values under the pointer or the arrow keys.
  const rowsOf = (data) =>
    data.rows ?? data.series.flatMap((series) => series.y.map((value, k) => [series.name, ...Object.keys(data.axes).map((axis) => series.x[axis][k]), value]));

  const tabulate = (data) => {
    const table = make("table");
    const head = table.createTHead().insertRow();
    for (const column of data.columns) head.append(make("th", column));
    const body = table.createTBody();
    for (const row of rowsOf(data)) {
      const line = body.insertRow();
      for (const cell of row) line.append(make("td", show(cell), typeof cell === "number" ? "number" : ""));
    }
    return table;
  };

  const setUpFigure = (figure) => {
    const data = JSON.parse(figure.querySelector("script.data").textContent);
    const numbers = figure.querySelector(".numbers");
    numbers.addEventListener("toggle", () => {
      const place = numbers.querySelector(".scroll");
      if (numbers.open && !place.firstChild) place.append(tabulate(data));
    });
    numbers.querySelector(".csv").addEventListener("click", () => download(data.key, [data.columns, ...rowsOf(data)]));
    if (data.series) setUpReading(figure, data);
  };

  const setUpReading = (figure, data) => {
    const plots = figure.querySelector(".plots");
    const tip = figure.querySelector(".tip");
    const off = new Set();
    let reading = null;
    const current = () => {
      const plot = all(".plot", figure).find((one) => !one.hidden);
      const svg = plot.querySelector("svg");
      const lines = all("polyline", svg).map((line) => line.getAttribute("points").trim().split(/\s+/).filter(Boolean).map((pair) => pair.split(",").map(Number)));
      return { axis: plot.dataset.axis, svg, lines };
    };
    const nearest = (points, x) => {
      let best = 0;
      points.forEach((point, k) => { if (Math.abs(point[0] - x) < Math.abs(points[best][0] - x)) best = k; });
      return best;
    };
    const read = (x) => {
      const { axis, svg, lines } = current();
      const shown = lines.map((points, k) => ({ points, k })).filter(({ points, k }) => points.length && !off.has(k));
      if (!shown.length) return;
      const snapped = shown.map(({ points }) => points[nearest(points, x)][0]).reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a));
      tip.replaceChildren();
      shown.forEach(({ points, k }, order) => {
        const place = nearest(points, snapped);
        const series = data.series[k];
        if (!order) tip.append(make("b", `${data.axes[axis]} ${show(series.x[axis][place])}`));
        const line = make("div");
        const dot = make("i");
        dot.className = figure.querySelectorAll("polyline")[k].classList[1];
        line.append(dot, `${data.series.length > 1 ? series.name + " " : ""}${show(series.y[place])}`);
        tip.append(line);
      });
      const cursor = svg.querySelector(".cursor");
      cursor.setAttribute("x1", snapped);
      cursor.setAttribute("x2", snapped);
      const box = svg.viewBox.baseVal;
      const share = snapped / box.width;
      tip.style.left = share < 0.5 ? `calc(${share * 100}% + 10px)` : "auto";
      tip.style.right = share < 0.5 ? "auto" : `calc(${(1 - share) * 100}% + 10px)`;
      tip.hidden = false;
      plots.classList.add("reading");
      reading = snapped;
    };
    const stop = () => { tip.hidden = true; plots.classList.remove("reading"); reading = null; };
    plots.addEventListener("pointermove", (event) => {
      const box = current().svg.getBoundingClientRect();
      read(((event.clientX - box.left) / box.width) * current().svg.viewBox.baseVal.width);
    });
    plots.addEventListener("pointerleave", stop);
    plots.addEventListener("blur", stop);
    plots.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return stop();
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step && event.key !== "Home" && event.key !== "End") return;
      event.preventDefault();
      const places = [...new Set(current().lines.filter((_, k) => !off.has(k)).flat().map((point) => point[0]))].sort((a, b) => a - b);
      if (!places.length) return;
      if (event.key === "Home" || (reading === null && step > 0)) return read(places[0]);
      if (event.key === "End" || reading === null) return read(places.at(-1));
      const at = places.findIndex((place) => Math.abs(place - reading) < 0.05);
      read(places[Math.min(places.length - 1, Math.max(0, at + step))]);
    });
    for (const button of all("[data-toggle]", figure)) {
      button.addEventListener("click", () => {
        const k = Number(button.dataset.toggle);
        off.has(k) ? off.delete(k) : off.add(k);
        button.setAttribute("aria-pressed", String(!off.has(k)));
        for (const group of all(`.series[data-series="${k}"]`, figure)) group.classList.toggle("off", off.has(k));
      });
    }
  };

  const setUpAxes = () => {
    for (const input of all("#axis input")) {
      input.addEventListener("change", () => {
        for (const figure of all("#curves [data-figure]")) {
          const plots = all(".plot", figure);
          if (plots.some((plot) => plot.dataset.axis === input.value)) for (const plot of plots) plot.hidden = plot.dataset.axis !== input.value;
        }
      });
    }
  };

  // Tables: sort by any column.
  const valueOf = (cell) => {
    if (cell.dataset.value === undefined) return cell.textContent;
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  };
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  };
  const setUpTable = (card) => {
    const table = card.querySelector("table");
    card.querySelector(".csv").addEventListener("click", () => {
      const rows = all("tr", table).map((row) => [...row.cells].map((cell) => cell.dataset.value ?? cell.textContent.trim()));
      download(card.dataset.table, rows);
    });
    if (!table.classList.contains("sortable")) return;
    all("thead button", table).forEach((button, column) => {
      button.addEventListener("click", () => {
        const head = button.closest("th");
        const descending = head.getAttribute("aria-sort") === "none" ? head.classList.contains("number") : head.getAttribute("aria-sort") === "ascending";
        for (const other of all("thead th", table)) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows].sort((a, b) => {
          const [x, y] = [valueOf(a.cells[column]), valueOf(b.cells[column])];
          return x === null || y === null ? compare(x, y) : descending ? compare(y, x) : compare(x, y);
        });
        body.append(...rows);
      });
    });
  };

  // Rows: which are shown, in which order.
  const setUpRows = (group) => {
    const list = group.querySelector(".list");
    const rows = all(".row", group);
    const search = group.querySelector(".search");
    const order = group.querySelector(".order");
    const cell = group.querySelector(".cell-filter");
    let chosen = null;
    let total = "";
    const update = () => {
      const set = group.querySelector(".sets input:checked")?.value ?? "all";
      const words = search.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) {
        const inSet = chosen !== null ? row.dataset.cell === chosen : set === "all" || row.dataset.sets.split(" ").includes(set);
        row.hidden = !(inSet && (!words || row.textContent.toLowerCase().includes(words)));
        shown += !row.hidden;
      }
      group.querySelector(".count").textContent = `${shown} ${shown === 1 ? "row" : "rows"} shown`;
      group.querySelector(".none").hidden = shown > 0;
      cell.hidden = chosen === null;
      if (chosen !== null) {
        const [right, found] = chosen.split("\n");
        cell.querySelector("span").textContent = `${right} predicted as ${found}: ${shown} of ${total} rows kept`;
      }
    };
    const sort = () => {
      const key = order.value.replace("-", "");
      const sign = order.value === "confidence" ? -1 : 1;
      const value = (row) => (row.dataset[key] === "" ? Infinity : Number(row.dataset[key]));
      list.append(...(key ? [...rows].sort((a, b) => sign * (value(a) - value(b)) || 0) : rows));
    };
    search.addEventListener("input", update);
    order.addEventListener("change", sort);
    for (const input of all(".sets input", group)) input.addEventListener("change", () => { chosen = null; update(); });
    cell.addEventListener("click", () => { chosen = null; update(); search.focus(); });
    for (const button of all(".confusion button")) {
      if (button.dataset.rows !== group.dataset.rowsOf) continue;
      button.addEventListener("click", () => {
        chosen = button.dataset.cell;
        total = button.textContent;
        update();
        group.scrollIntoView({ block: "start" });
        cell.focus({ preventScroll: true });
      });
    }
    update();
  };

  // The theme: automatic, light or dark, kept where the browser lets a file keep anything.
  const setUpTheme = () => {
    const button = document.getElementById("theme");
    const names = ["auto", "light", "dark"];
    let current = "auto";
    const use = (name) => {
      current = name;
      if (name === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = name;
      button.querySelector("span").textContent = name;
      button.setAttribute("aria-label", `Color theme: ${name === "auto" ? "automatic" : name}`);
    };
    try { use(names.includes(localStorage.getItem("recipe-theme")) ? localStorage.getItem("recipe-theme") : "auto"); } catch { use("auto"); }
    button.addEventListener("click", () => {
      use(names[(names.indexOf(current) + 1) % names.length]);
      try { localStorage.setItem("recipe-theme", current); } catch { /* this browser keeps nothing for files */ }
    });
  };

  const setUpCopy = (button) => {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try { await navigator.clipboard.writeText(code.textContent); } catch {
        getSelection().selectAllChildren(code); // the reader can still copy it
        return;
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  };

  all("[data-figure]").forEach(setUpFigure);
  all("[data-table]").forEach(setUpTable);
  all("[data-rows-of]").forEach(setUpRows);
  all(".copy").forEach(setUpCopy);
  setUpAxes();
  setUpTheme();
  const defaults = document.getElementById("defaults");
  defaults.addEventListener("change", () => document.body.classList.toggle("with-defaults", defaults.checked));
})();
