// Every figure: the pointer or the arrow keys choose a place, buttons switch series on and off.
for (const figure of document.querySelectorAll("figure[data-figure]")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const plot = figure.querySelector(".plot");
  const svg = plot.querySelector("svg");
  const cursor = svg.querySelector(".cursor");
  const output = figure.querySelector("output");
  const buttons = [...figure.querySelectorAll(".legend button")];
  let index = null;

  const shown = () => data.series.filter((_, i) => buttons[i].getAttribute("aria-pressed") === "true");

  function nearest(series, at) {
    let best = 0;
    series.at.forEach((x, i) => {
      if (Math.abs(x - at) < Math.abs(series.at[best] - at)) best = i;
    });
    return best;
  }

  function show(at) {
    const lines = shown();
    if (at === null || lines.length === 0) {
      cursor.setAttribute("hidden", "hidden");
      output.textContent = "";
      return;
    }
    cursor.removeAttribute("hidden");
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    output.textContent = lines.map((series) => {
      const i = nearest(series, at);
      return `${series.name} at ${series.x[i]}: ${series.values[i]}`;
    }).join("; ");
  }

  function step(to) {
    const lines = shown();
    if (lines.length === 0) return;
    index = Math.max(0, Math.min(lines[0].at.length - 1, to));
    show(lines[0].at[index]);
  }

  plot.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const lines = shown();
    if (lines.length === 0) return;
    const at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    index = nearest(lines[0], at);
    show(lines[0].at[index]);
  });
  plot.addEventListener("pointerleave", () => show(null));
  plot.addEventListener("blur", () => show(null));
  plot.addEventListener("focus", () => step(index ?? Number.MAX_SAFE_INTEGER));
  plot.addEventListener("keydown", (event) => {
    const last = Number.MAX_SAFE_INTEGER;
    const to = { ArrowLeft: (index ?? 1) - 1, ArrowRight: (index ?? -1) + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") show(null);
    if (to === undefined) return;
    event.preventDefault();
    step(to);
  });
  buttons.forEach((button, i) => button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    const line = svg.querySelector(`[data-series="${i}"]`);
    if (on) line.removeAttribute("hidden");
    else line.setAttribute("hidden", "hidden");
    show(null);
  }));
}
document.documentElement.dataset.ready = "yes";
