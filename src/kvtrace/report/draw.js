// Draws the page's figures in the colours of its theme, and again when the theme changes.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement, button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  // apart for colour-blind readers too, after Okabe and Ito; lighter on a dark page
  const themes = {
    light: {
      series: ["#0067a5", "#d55e00", "#009e73", "#a6519d"], ink: "#1b2430", soft: "#5d6875", grid: "#e9ecf0", card: "#ffffff",
      density: [[0, "#dcebf6"], [0.35, "#79b3db"], [0.7, "#1f78b4"], [1, "#08306b"]],
    },
    dark: {
      series: ["#6bb8ee", "#f2a044", "#3ecf9f", "#dc97d2"], ink: "#e6eaf0", soft: "#98a3b1", grid: "#29313b", card: "#1a2028",
      density: [[0, "#1d3347"], [0.35, "#24638f"], [0.7, "#5aaee6"], [1, "#e8f4fd"]],
    },
  };
  let chosen = null;

  const coloured = (trace, theme) => {
    if (trace.meta === "density") {
      const bar = { ...trace.colorbar, tickfont: { color: theme.soft, size: 11 } };
      return { ...trace, colorscale: theme.density, colorbar: bar };
    }
    const colour = theme.series[trace.meta % theme.series.length];
    if (trace.type === "bar") return { ...trace, marker: { color: colour } };
    return { ...trace, line: { ...trace.line, color: colour }, marker: { color: colour, size: 6 } };
  };

  const axis = (own, theme) => ({
    gridcolor: theme.grid, linecolor: theme.grid, zerolinecolor: theme.grid, tickfont: { color: theme.soft, size: 11 },
    automargin: true, ticks: "", ...own, title: { ...own.title, font: { color: theme.soft, size: 12 }, standoff: 8 },
  });

  const layout = (own, theme) => ({
    ...own, xaxis: axis(own.xaxis, theme), yaxis: axis(own.yaxis, theme), paper_bgcolor: theme.card, plot_bgcolor: theme.card,
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif", color: theme.ink },
    margin: { l: 8, r: 12, t: 8, b: 8 }, hovermode: "closest", bargap: 0.08,
    legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", font: { size: 11.5, color: theme.ink } },
    hoverlabel: { bgcolor: theme.card, bordercolor: theme.soft, font: { color: theme.ink, size: 12 } },
  });

  const draw = () => {
    const name = chosen || (system.matches ? "dark" : "light"), theme = themes[name];
    root.dataset.theme = name;
    button.textContent = name === "dark" ? "Light" : "Dark";
    for (const [id, figure] of Object.entries(figures)) {
      const data = figure.data.map((trace) => coloured(trace, theme));
      Plotly.react(id, data, layout(figure.layout, theme), { displayModeBar: false, responsive: true });
    }
  };

  button.addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    draw();
  });
  system.addEventListener("change", draw);
  draw();
})();
