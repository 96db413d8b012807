// Draws the page's plots when they come near and shows its transcripts when they are opened. It inserts text, never markup.
"use strict";
(() => {
  const parsed = new Map();
  const read = (id) => {
    if (!parsed.has(id)) parsed.set(id, JSON.parse(document.getElementById(id).textContent));
    return parsed.get(id);
  };
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

  // Plots. A browser holds few WebGL contexts: plots that use it are given up while they are far away.
  const hasWebGL = Boolean(document.createElement("canvas").getContext("webgl"));
  const usesWebGL = (plot) => plot.data.some((trace) => trace.type === "scattergl");
  const config = { responsive: true, displaylogo: false };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  // Colours of the page that plots have in the light one, by the variables of page.css that stand for them.
  const replaced = { "#222b36": "--ink", "#d5dae1": "--faint", "#eef0f3": "--row" };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const recoloured = (value) => {
    if (Array.isArray(value)) return value.map(recoloured);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, /color|line|marker|font/.test(key) ? recoloured(each) : each]));
    }
    return replaced[value] ? colour(replaced[value]) : value;
  };
  const themed = (plot, light) => {
    const layout = structuredClone(plot.layout);
    if (light || !dark.matches) return { data: plot.data, layout };
    layout.font.color = colour("--ink");
    Object.assign(layout, { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" });
    Object.keys(layout).filter((key) => /^[xy]axis/.test(key)).forEach((key) => {
      Object.assign(layout[key], { gridcolor: colour("--grid"), linecolor: colour("--tick"), tickcolor: colour("--tick") });
    });
    return { data: plot.data.map(recoloured), layout };
  };

  const fitLines = (place) => {
    const { meta, yaxis } = place.layout;
    if (!meta || !meta.rows) return;
    const seen = Math.abs(yaxis.range[0] - yaxis.range[1]);
    const width = Math.min(16, Math.max(1, (0.8 * meta.room) / seen));
    if (Math.abs(width - place.data[0].line.width) > 0.2) Plotly.restyle(place, { "line.width": width });
  };
  const draw = (place) => {
    if (place.dataset.drawn) return;
    place.dataset.drawn = "yes";
    const plot = read(place.dataset.plot);
    if (!hasWebGL) plot.data.forEach((trace) => { if (trace.type === "scattergl") trace.type = "scatter"; });
    const { data, layout } = themed(plot);
    if (layout.meta?.rows) place.classList.add("rows");
    Plotly.newPlot(place, data, layout, config);
    place.on("plotly_relayout", () => fitLines(place));
  };
  const drop = (place) => {
    if (!place.dataset.drawn || !usesWebGL(read(place.dataset.plot))) return;
    delete place.dataset.drawn;
    Plotly.purge(place);
  };
  const plots = [...document.querySelectorAll(".plot")];
  const near = new IntersectionObserver(
    (entries) => entries.forEach((entry) => (entry.isIntersecting ? draw : drop)(entry.target)),
    { rootMargin: "800px" },
  );
  plots.forEach((place) => near.observe(place));
  const repaint = (light) => plots.filter((place) => place.dataset.drawn).forEach((place) => {
    const { data, layout } = themed(read(place.dataset.plot), light);
    Plotly.react(place, data, layout, config);
  });
  dark.addEventListener("change", () => repaint(false));
  window.addEventListener("afterprint", () => { if (dark.matches) repaint(false); });
  window.addEventListener("beforeprint", () => {
    plots.forEach(draw);
    if (dark.matches) repaint(true);
    document.querySelectorAll("figure.table details").forEach((table) => { table.open = true; });
  });

  // Transcripts.
  const words = {
    guidance: "guidance", accepted: "accepted", unverified: "unverified", fallback: "fallback", first_steps: "first steps", written: "written",
    rejected: "rejected candidate", not_chosen: "candidate not chosen",
  };
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const written = (text) => make("div", "text", text.replace(/^\n+|\n+$/g, ""));
  const labelled = (into, label, text) => {
    if (text === null) return;
    into.append(make("div", "label", label), written(text));
  };
  const candidate = (each, number, rejected) => {
    const kind = each.chosen ? "accepted" : rejected ? "rejected" : "not_chosen";
    const box = make("div", `candidate ${kind}`);
    const head = make("div", "head");
    const odds = each.probability === null ? "" : `, ${percent(each.probability)}`;
    head.append(make("b", "", each.chosen ? "chosen" : rejected ? "rejected" : "not chosen"), ` · candidate ${number + 1} · ${count(each.tokens, "token")}${odds}`);
    box.append(head, each.same_as === null ? written(each.text) : make("div", "facts", `the same as candidate ${each.same_as + 1}`));
    return box;
  };
  const candidates = (step) => {
    const rejected = step.decision === "fallback";  // a gate rejects nothing
    const different = step.candidates.filter((each) => each.same_as === null).length;
    const some = make("details");
    some.open = !step.candidates.some((each) => each.chosen);
    some.append(make("summary", "", `${step.candidates.length} drafted, ${different} different`));
    step.candidates.forEach((each, number) => some.append(candidate(each, number, rejected)));
    return some;
  };
  const stepBox = (step) => {
    const box = make("div", `step ${step.decision}`);
    const head = make("div", "head");
    const waited = step.wait_s > 0.0005 ? `, ${step.wait_s.toPrecision(3)} s in the client queue` : "";
    head.append(
      make("b", "", `${step.index} ${words[step.decision] || step.decision}`),
      ` · ${step.engine} · ${count(step.tokens, "token")} · ${step.time_s.toPrecision(3)} s${waited}`,
    );
    box.append(head, written(step.text));
    step.gates.forEach((gate) => box.append(make("div", "head", gate)));
    if (step.verdict !== null) box.append(make("div", "head", step.verdict));
    if (step.candidates.length) box.append(candidates(step));
    return box;
  };
  const tell = (transcript) => {
    const told = make("div", "told");
    labelled(told, "problem", transcript.problem === null ? "none" : transcript.problem);
    told.append(make("div", "label", "thought"));
    transcript.steps.forEach((step) => told.append(stepBox(step)));
    labelled(told, "answer text", transcript.answer_text);
    labelled(told, "answer", transcript.answer);
    labelled(told, "reference", transcript.reference);
    labelled(told, "stop reason", transcript.ended);
    return told;
  };
  const transcriptBox = (transcript) => {
    const box = make("details", "transcript");
    box.dataset.why = transcript.why.join(" ");
    box.dataset.text = `${transcript.chain_id}\n${transcript.problem || ""}`.toLowerCase();
    const line = make("summary");
    line.append(make("span", "name", transcript.chain_id), make("span", `badge ${transcript.verdict}`, transcript.verdict));
    transcript.why.filter((why) => why !== transcript.verdict).forEach((why) => line.append(make("span", "badge", why)));
    line.append(make("span", "facts", transcript.facts));
    box.append(line);
    box.addEventListener("toggle", () => { if (box.open && box.childElementCount === 1) box.append(tell(transcript)); });
    return box;
  };
  const filters = (place, boxes) => {
    const bar = make("div", "filter");
    const kinds = ["all", ...new Set(boxes.flatMap((box) => box.dataset.why.split(" ")))];
    const search = make("input");
    Object.assign(search, { type: "search", placeholder: "search problem" });
    search.setAttribute("aria-label", "search problem");
    let chosen = "all";
    const filter = () => {
      const wanted = search.value.trim().toLowerCase();
      boxes.forEach((box) => {
        const other = chosen !== "all" && !box.dataset.why.split(" ").includes(chosen);
        box.hidden = other || !box.dataset.text.includes(wanted);
      });
    };
    const choose = (kind) => {
      chosen = kind;
      bar.querySelectorAll("button").forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.kind === kind)));
      filter();
    };
    search.addEventListener("input", filter);
    kinds.forEach((kind) => {
      const count = kind === "all" ? boxes.length : boxes.filter((box) => box.dataset.why.split(" ").includes(kind)).length;
      const button = make("button", "", `${kind} ${count}`);
      button.dataset.kind = kind;
      button.addEventListener("click", () => choose(kind));
      bar.append(button);
    });
    bar.append(search);
    choose("all");
    return bar;
  };
  const key = () => {
    const line = make("div", "key");
    Object.entries(words).forEach(([kind, word]) => line.append(make("span", kind, word)));
    return line;
  };
  document.querySelectorAll(".transcripts").forEach((place) => {
    const boxes = read(place.dataset.transcripts).map(transcriptBox);
    const one = boxes.length === 1;
    if (one) boxes[0].open = true;
    place.append(...(one ? [] : [filters(place, boxes)]), key(), ...boxes);
  });
})();
