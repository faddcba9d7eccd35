"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const STAGES = data.stages;
  let run = null;
  let view = { from: 0, to: 1 };

  const duration = (ns) => {
    const size = Math.abs(ns);
    if (size >= 1e9) return (ns / 1e9).toFixed(3) + " s";
    if (size >= 1e6) return (ns / 1e6).toFixed(2) + " ms";
    if (size >= 1e3) return (ns / 1e3).toFixed(1) + " us";
    return Math.round(ns) + " ns";
  };

  // A canvas in device pixels, cleared; drawing is in CSS pixels.
  const surface = (canvas, height) => {
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth || 1000;
    canvas.style.height = height + "px";
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    return { context, width, height };
  };

  // Round distances between ticks: 1, 2 or 5 times a power of ten.
  const tickStep = (span, count) => {
    const rough = span / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  };

  const timeAxis = (context, left, right, y, height, from, to) => {
    const step = tickStep(to - from, 8);
    context.strokeStyle = colour("line");
    context.fillStyle = colour("soft");
    context.textAlign = "center";
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      const x = left + ((t - from) / (to - from)) * (right - left);
      context.beginPath(); context.moveTo(x, y); context.lineTo(x, y + height); context.stroke();
      context.fillText(duration(t), Math.min(Math.max(x, left + 24), right - 24), y + height + 10);
    }
  };

  // -- swim lane

  const LEFT = 76, LANE = 18, GAP = 8;
  let hits = [];

  const laneHeights = () => STAGES.map((stage) => Math.min(run.steps[stage + "_lanes"], 6));

  const drawLanes = () => {
    const rows = laneHeights();
    const body = rows.reduce((sum, lanes) => sum + lanes * LANE + GAP, GAP);
    const { context, width } = surface(byId("lanes"), body + 24);
    const right = width - 12;
    const scale = (right - LEFT) / (view.to - view.from);
    timeAxis(context, LEFT, right, 0, body, view.from, view.to);
    hits = [];
    let top = GAP;
    STAGES.forEach((stage, index) => {
      context.fillStyle = colour("soft");
      context.textAlign = "right";
      context.fillText(stage, LEFT - 10, top + (rows[index] * LANE) / 2);
      const start = run.steps[stage + "_start"], length = run.steps[stage], lane = run.steps[stage + "_lane"];
      const cold = run.steps.cold;
      for (let i = 0; i < start.length; i++) {
        if (start[i] === null) continue;
        const begin = start[i], end = begin + length[i];
        if (end < view.from || begin > view.to) continue;
        const x0 = Math.max(LEFT, LEFT + (begin - view.from) * scale);
        const x1 = Math.min(right, LEFT + (end - view.from) * scale);
        const y = top + Math.min(lane[i], rows[index] - 1) * LANE;
        const wide = Math.max(x1 - x0, 0.6);
        context.fillStyle = colours[stage];
        context.fillRect(x0, y, wide > 3 ? wide - 1 : wide, LANE - 3);
        if (cold[i]) { context.fillStyle = colours[cold[i] === "slot_grown" ? "grown" : "cold"]; context.fillRect(x0, y + LANE - 6, wide, 3); }
        if (wide > 34) {
          context.fillStyle = "#fff"; context.textAlign = "left";
          context.fillText(String(run.steps.seq[i]), x0 + 4, y + (LANE - 3) / 2);
        }
        if (hits.length < 20000) hits.push([x0, x0 + Math.max(wide, 2), y, y + LANE, stage, i]);
      }
      top += rows[index] * LANE + GAP;
    });
    byId("window").textContent = duration(view.from) + " to " + duration(view.to) + " (" + duration(view.to - view.from) + ")";
    drawOccupancy();
  };

  const zoom = (factor, centre) => {
    const span = Math.min(Math.max((view.to - view.from) * factor, 200), run.span || 1);
    const at = centre === undefined ? 0.5 : centre;
    const pivot = view.from + (view.to - view.from) * at;
    setView(pivot - span * at, pivot + span * (1 - at));
  };

  const setView = (from, to) => {
    const span = Math.min(to - from, run.span);
    from = Math.max(0, Math.min(from, run.span - span));
    view = { from, to: from + span };
    drawLanes();
  };

  // -- occupancy, over the same window

  const drawOccupancy = () => {
    const { context, width, height } = surface(byId("occupancy"), 110);
    const right = width - 12, base = height - 22, top = 12;
    timeAxis(context, LEFT, right, 0, base, view.from, view.to);
    const most = Math.max(1, run.slots || 0, ...run.occupancy.count);
    const y = (count) => base - (count / most) * (base - top);
    context.textAlign = "right";
    for (let n = 0; n <= most; n += Math.max(1, Math.ceil(most / 4))) { context.fillStyle = colour("soft"); context.fillText(String(n), LEFT - 10, y(n)); }
    if (run.slots) { context.strokeStyle = colour("cold"); context.setLineDash([4, 4]); context.beginPath(); context.moveTo(LEFT, y(run.slots)); context.lineTo(right, y(run.slots)); context.stroke(); context.setLineDash([]); }
    const scale = (right - LEFT) / (view.to - view.from);
    context.strokeStyle = colour("accent");
    context.beginPath();
    let last = 0, started = false;
    run.occupancy.at.forEach((t, i) => {
      if (t <= view.to) {
        const x = Math.max(LEFT, LEFT + (t - view.from) * scale);
        if (t >= view.from) {
          if (!started) { context.moveTo(LEFT, y(last)); started = true; }
          context.lineTo(x, y(last)); context.lineTo(x, y(run.occupancy.count[i]));
        }
        last = run.occupancy.count[i];
      }
    });
    if (!started) context.moveTo(LEFT, y(last));
    context.lineTo(right, y(last));
    context.stroke();
  };

  // -- step time over time: the range of each bucket of steps, and marked steps as points

  let points = [];
  const drawTimes = () => {
    const { context, width, height } = surface(byId("times"), 220);
    const series = run.times;
    const right = width - 12, base = height - 24, top = 12;
    const most = Math.max(1, ...series.max);
    const first = run.first_seq, last = Math.max(run.last_seq, first + 1);
    const x = (seq) => LEFT + ((seq - first) / (last - first)) * (right - LEFT);
    const y = (ns) => base - (ns / most) * (base - top);
    const step = tickStep(most, 4);
    for (let t = 0; t <= most; t += step) {
      context.strokeStyle = colour("line"); context.beginPath(); context.moveTo(LEFT, y(t)); context.lineTo(right, y(t)); context.stroke();
      context.fillStyle = colour("soft"); context.textAlign = "right"; context.fillText(duration(t), LEFT - 8, y(t));
    }
    context.textAlign = "center";
    for (let n = 0; n <= 6; n++) context.fillText("step " + Math.round(first + ((last - first) * n) / 6), Math.min(Math.max(x(first + ((last - first) * n) / 6), LEFT + 20), right - 30), base + 12);
    context.strokeStyle = colour("accent"); context.globalAlpha = 0.35;
    series.seq.forEach((seq, i) => { context.beginPath(); context.moveTo(x(seq), y(series.min[i])); context.lineTo(x(seq), y(series.max[i])); context.stroke(); });
    context.globalAlpha = 1;
    context.beginPath();
    series.seq.forEach((seq, i) => (i ? context.lineTo(x(seq), y(series.p50[i])) : context.moveTo(x(seq), y(series.p50[i]))));
    context.stroke();
    points = [];
    run.marked.seq.forEach((seq, i) => {
      const why = run.marked.why[i], px = x(seq), py = y(Math.min(run.marked.ns[i], most));
      context.fillStyle = colour(why === "slot_grown" ? "grown" : why === "outlier" ? "device" : "cold");
      context.beginPath(); context.arc(px, py, 3, 0, 7); context.fill();
      points.push([px, py, "step " + seq + "\n" + duration(run.marked.ns[i]) + "\n" + why.replace("_", " ")]);
    });
  };

  // -- histograms

  const drawHistograms = () => {
    const holder = byId("histograms");
    holder.textContent = "";
    run.histograms.map((histogram) => {
      const box = document.createElement("div");
      const title = document.createElement("h3");
      title.textContent = histogram.label + ": " + histogram.steps + " steps, p50 " + histogram.p50 + ", p99 " + histogram.p99;
      const canvas = document.createElement("canvas");
      box.append(title, canvas);
      holder.append(box);
      return [histogram, canvas];
    }).forEach(([histogram, canvas]) => {  // once all are placed, as the last may bring a scroll bar
      const { context, width, height } = surface(canvas, 130);
      const left = 8, right = width - 8, base = height - 22;
      const most = Math.max(...histogram.counts);
      const each = (right - left) / histogram.counts.length;
      histogram.counts.forEach((count, i) => {
        if (!count) return;
        const tall = Math.max(2, (Math.sqrt(count) / Math.sqrt(most)) * (base - 10));
        context.fillStyle = colours[histogram.stage] || colour("accent");
        context.fillRect(left + i * each, base - tall, Math.max(each - 1, 1), tall);
      });
      context.fillStyle = colour("soft");
      context.textAlign = "left"; context.fillText(duration(histogram.edges[0]), left, base + 11);
      context.textAlign = "right"; context.fillText(duration(histogram.edges[histogram.edges.length - 1]), right, base + 11);
    });
  };

  const show = (number) => {
    run = data.runs[number];
    document.querySelectorAll("[data-run]").forEach((part) => { part.hidden = part.dataset.run !== String(number); });
    if (!run) return;
    view = { from: 0, to: run.span };
    const focus = run.focus;
    drawTimes();
    drawHistograms();
    setView(focus[0], focus[1]);
  };

  const colours = {};
  const readColours = () => [...STAGES, "cold", "grown"].forEach((name) => { colours[name] = colour(name); });
  const legend = byId("legend");
  readColours();
  [...STAGES, "cold", "grown"].forEach((name) => {
    const key = document.createElement("span");
    key.className = "key";
    const box = document.createElement("i");
    box.style.background = "var(--" + name + ")";
    key.append(box, document.createTextNode({ cold: "cold step", grown: "slot grown" }[name] || name));
    legend.append(key);
  });

  const tip = byId("tip");
  const tell = (event, text) => {
    tip.style.display = text ? "block" : "none";
    if (!text) return;
    tip.textContent = text;
    tip.style.left = Math.min(event.clientX + 14, window.innerWidth - 260) + "px";
    tip.style.top = Math.min(event.clientY + 14, window.innerHeight - 120) + "px";
  };

  const lanesCanvas = byId("lanes");
  const place = (event) => { const box = lanesCanvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top, box.width]; };
  lanesCanvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const [x, , width] = place(event);
    zoom(event.deltaY < 0 ? 0.8 : 1.25, Math.min(Math.max((x - LEFT) / (width - LEFT - 12), 0), 1));
  }, { passive: false });
  let drag = null;
  lanesCanvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, ...view }; lanesCanvas.setPointerCapture(event.pointerId); });
  lanesCanvas.addEventListener("pointerup", () => { drag = null; });
  lanesCanvas.addEventListener("pointermove", (event) => {
    const [x, y, width] = place(event);
    if (drag) {
      const moved = ((event.clientX - drag.x) / (width - LEFT - 12)) * (drag.to - drag.from);
      setView(drag.from - moved, drag.to - moved);
      return;
    }
    const hit = hits.find((h) => x >= h[0] && x <= h[1] && y >= h[2] && y < h[3]);
    const s = run.steps;
    tell(event, hit && hit[4] + " of step " + s.seq[hit[5]] + "\n" + duration(s[hit[4]][hit[5]]) + " from " + duration(s[hit[4] + "_start"][hit[5]]) + (s.slot[hit[5]] === null ? "" : "\nslot " + s.slot[hit[5]]) + (s.cold[hit[5]] ? "\ncold: " + s.cold[hit[5]].replace("_", " ") : ""));
  });
  lanesCanvas.addEventListener("pointerleave", (event) => tell(event, ""));
  lanesCanvas.addEventListener("keydown", (event) => {
    const span = view.to - view.from;
    const moves = { "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4), ArrowLeft: () => setView(view.from - span / 5, view.to - span / 5), ArrowRight: () => setView(view.from + span / 5, view.to + span / 5), 0: () => setView(0, run.span) };
    if (moves[event.key]) { event.preventDefault(); moves[event.key](); }
  });
  byId("times").addEventListener("pointermove", (event) => {
    const box = byId("times").getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const near = points.find((p) => Math.hypot(p[0] - x, p[1] - y) < 6);
    tell(event, near && near[2]);
  });
  byId("times").addEventListener("pointerleave", (event) => tell(event, ""));
  byId("in").addEventListener("click", () => zoom(0.5));
  byId("out").addEventListener("click", () => zoom(2));
  byId("all").addEventListener("click", () => setView(0, run.span));
  byId("run").addEventListener("change", (event) => show(Number(event.target.value)));
  document.querySelectorAll("[data-goto]").forEach((button) => button.addEventListener("click", () => {
    const [from, to] = button.dataset.goto.split(",").map(Number);
    const span = to - from;
    setView(from - span, to + span);
    lanesCanvas.scrollIntoView({ block: "center" });
  }));
  window.addEventListener("resize", () => { if (run) { drawTimes(); drawHistograms(); drawLanes(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); if (run) { drawTimes(); drawHistograms(); drawLanes(); } });
  if (data.runs.length) show(0); else byId("charts").hidden = true;
  window.asyncOrchReport = { get view() { return { ...view }; }, get span() { return run ? run.span : 0; }, get drawn() { return hits.length; } };
})();
