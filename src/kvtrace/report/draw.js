// Unpacks plotly, draws the page's figures in the colours of its theme, and saves a figure as CSV, SVG or PNG.
"use strict";
(async () => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement, button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  // apart for colour-blind readers too, after Okabe and Ito; lighter on a dark page
  const themes = {
    light: {
      series: ["#0067a5", "#d55e00", "#009e73", "#a6519d", "#8a6d00", "#5d6875"],
      tones: ["#36a0e4", "#513f14", "#6d1d5a", "#2fdf86", "#dbc93e", "#c3cad3", "#9319fb"],
      ink: "#1b2430", soft: "#5d6875", grid: "#e9ecf0", card: "#ffffff",
      density: [[0, "#dcebf6"], [0.35, "#79b3db"], [0.7, "#1f78b4"], [1, "#08306b"]],
    },
    dark: {
      series: ["#6bb8ee", "#f2a044", "#3ecf9f", "#dc97d2", "#d9c04a", "#98a3b1"],
      tones: ["#c5ecf8", "#94712c", "#9a3aa6", "#1d8f69", "#eaea86", "#465160", "#9331fe"],
      ink: "#e6eaf0", soft: "#98a3b1", grid: "#29313b", card: "#1a2028",
      density: [[0, "#1d3347"], [0.35, "#24638f"], [0.7, "#5aaee6"], [1, "#e8f4fd"]],
    },
  };
  const PAPER = { width: 310, height: 228, autosize: false }; // of a plot on paper: three beside each other
  const WIDE_PAPER = { width: 1000, height: 228, autosize: false }; // the hit curve, the timeline of sessions
  let chosen = null;

  const unpack = async (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  };

  const coloured = (trace, theme) => {
    if (trace.meta === "density") {
      const bar = { ...trace.colorbar, tickfont: { color: theme.soft, size: 11 } };
      return { ...trace, colorscale: theme.density, colorbar: bar };
    }
    const colour = trace.meta < 0 ? theme.tones[-trace.meta - 1] : theme.series[trace.meta % theme.series.length];
    if (trace.base) return { ...trace, marker: { color: colour, line: { color: colour, width: 0.7 } } }; // seen at any length
    if (trace.type === "bar") return { ...trace, marker: { color: colour } };
    const bars = trace.error_y ? { error_y: { ...trace.error_y, color: colour } } : {};
    return { ...trace, ...bars, line: { ...trace.line, color: colour }, marker: { color: colour, size: 6 } };
  };

  const axis = (own, theme, size) => ({
    gridcolor: theme.grid, linecolor: theme.grid, zerolinecolor: theme.grid, tickfont: { color: theme.soft, size: size - 1 },
    automargin: true, ticks: "", separatethousands: true, ...own, title: { ...own.title, font: { color: theme.soft, size }, standoff: 8 },
  });

  // a title in lines that fit into so many pixels
  const wrapped = (own, room, size) => {
    const lines = [""];
    for (const word of own.title.text.split(" ")) {
      const longer = `${lines.at(-1)} ${word}`.trim();
      if (longer.length * 0.55 * size <= room) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    return { ...own, title: { ...own.title, text: lines.filter(Boolean).join("<br>") } };
  };

  // the ticks of a logarithmic axis whose labels do not touch
  const spaced = (own, room, size) => {
    if (own.type !== "log" || !own.tickvals) return own;
    const [low, high] = own.range;
    let end = -Infinity;
    const keeps = own.tickvals.map((value, i) => {
      const middle = (room * (Math.log10(value) - low)) / (high - low);
      const half = (Math.max(...own.ticktext[i].split("<br>").map((line) => line.length)) * 0.6 * size) / 2;
      if (middle - half < end) return false;
      end = middle + half + 4;
      return true;
    });
    return { ...own, tickvals: own.tickvals.filter((_, i) => keeps[i]), ticktext: own.ticktext.filter((_, i) => keeps[i]) };
  };

  const across = (own, width, size) => spaced(wrapped(own, width - 70, size), width - 75, size);

  // above the axes, in columns whose number does not depend on the width of the axes, which depends on the legend's height
  const legend = (names, width, size, theme) => {
    const longest = Math.max(...names.map((name) => name.length));
    const columns = Math.max(1, Math.min(names.length, Math.floor((width - 55) / (42 + longest * 0.55 * size))));
    const fitting = Math.min(size, (width - 115) / (longest * 0.52)); // one long name in a narrow plot
    return {
      orientation: "h", x: 0, xref: "container", xanchor: "left", y: 1, yref: "container", yanchor: "top", maxheight: 1,
      entrywidthmode: "fraction", entrywidth: 0.99 / columns, font: { size: fitting, color: theme.ink },
    };
  };

  const layout = (own, names, theme, on_paper, width, height, size = on_paper ? 9.5 : 12) => ({
    ...own, xaxis: axis(across(own.xaxis, width, size), theme, size), yaxis: axis(wrapped(own.yaxis, height - 120, size), theme, size), paper_bgcolor: theme.card, plot_bgcolor: theme.card,
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif", color: theme.ink },
    margin: { l: 8, r: 12, t: 8, b: 8 }, hovermode: "closest", bargap: own.barmode === "stack" ? 0 : 0.08,
    legend: legend(names, width, on_paper ? 9 : 11.5, theme),
    hoverlabel: { bgcolor: theme.card, bordercolor: theme.soft, font: { color: theme.ink, size: 12 } },
  });

  const paint = (name, on_paper) => {
    const theme = themes[name];
    root.dataset.theme = name;
    for (const [id, figure] of Object.entries(figures)) {
      const data = figure.data.map((trace) => coloured(trace, theme));
      const size = !on_paper ? {} : /^(hit-curve|session-timeline)/.test(id) ? WIDE_PAPER : PAPER;
      const { clientWidth, clientHeight } = document.getElementById(id);
      const { width = clientWidth, height = clientHeight } = size;
      Plotly.react(id, data, { ...layout(figure.layout, data.map(({ name }) => name || ""), theme, on_paper, width, height), ...size }, { displayModeBar: false, responsive: !on_paper });
    }
  };

  const draw = () => {
    const name = chosen || (system.matches ? "dark" : "light");
    button.textContent = name === "dark" ? "Light" : "Dark";
    paint(name, false);
  };

  const nav = document.querySelector("nav");
  const hint = () => nav.toggleAttribute("data-more", nav.scrollLeft + nav.clientWidth < nav.scrollWidth - 8);
  nav.addEventListener("scroll", hint);
  window.addEventListener("resize", hint);
  hint();

  const save = (blob, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  const plain = (text) => text.replaceAll("<br>", " ").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");

  const cell = (value) => {
    if (typeof value === "number") return String(Number(value.toPrecision(6)));
    const text = /^[=+\-@\t\r]/.test(value) ? "'" + value : value; // a spreadsheet shows it as text
    return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  };

  const csv = (figure) => {
    const names = [figure.layout.xaxis.title.text, figure.layout.yaxis.title.text].map(plain);
    const rows = [];
    if (figure.data.some((trace) => trace.type === "heatmap")) {
      rows.push([...names, "share"]);
      const { x, y, z } = figure.data[0];
      z.forEach((row, j) => row.forEach((share, i) => share !== null && rows.push([x[i], y[j], share])));
    } else if (figure.data.some((trace) => trace.base)) {
      const { tickvals, ticktext } = figure.layout.yaxis;
      rows.push(["series", "row", names[0], "length"]);
      for (const { name, base, x, y } of figure.data) {
        base.forEach((start, i) => rows.push([plain(name), ticktext[tickvals.indexOf(y[i])], start, x[i]]));
      }
    } else {
      const bars = figure.data.some((trace) => trace.error_y);
      rows.push(["series", ...names, ...(bars ? ["low", "high"] : [])]);
      for (const { name, x, y, error_y: error } of figure.data) {
        x.forEach((value, i) => {
          const ends = error ? [y[i] - error.arrayminus[i], y[i] + error.array[i]] : ["", ""];
          rows.push([plain(name), value, y[i], ...(bars ? ends : [])]);
        });
      }
    }
    return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
  };

  document.addEventListener("click", (event) => {
    const { plot, save: format } = event.target.dataset || {};
    if (!format) return;
    if (format === "csv") save(new Blob([csv(figures[plot])], { type: "text/csv" }), plot + ".csv");
    else {
      const { clientWidth: width, clientHeight: height } = document.getElementById(plot);
      Plotly.downloadImage(plot, { format, width, height, scale: format === "png" ? 2 : 1, filename: plot });
    }
  });

  try {
    await unpack(document.getElementById("plotly").textContent);
  } catch (error) {
    document.getElementById("trouble").hidden = false;
    throw error;
  }
  button.addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    draw();
  });
  system.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => paint("light", true));
  window.addEventListener("afterprint", draw);
  draw();
  root.dataset.drawn = "yes";
})();
