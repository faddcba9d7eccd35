"use strict";
// The figures come twice a second. The swim lane moves with the clock and is drawn DELAY_S late, so that what is
// shown has arrived: a step's record is written when the step is over.
const LANES = ["build", "h2d", "device", "retire"];
const COLOURS = { decode: "#3b7dd8", prefill: "#e0952f", failed: "#c9413c" };
const DELAY_S = 1.2, KEPT = 4000, LABEL_PX = 64;

const element = (id) => document.getElementById(id);
const canvas = element("lanes");
let rows = [], clockOffsetNs = null;

function milliseconds(pair) {
  return pair === null ? "-" : pair.map((s) => (s * 1000).toFixed(s < 0.1 ? 1 : 0)).join(" / ") + " ms";
}

function show(data) {
  element("state").textContent = data.state;
  element("tokens").textContent = data.tokens_per_s.toFixed(1);
  element("first").textContent = milliseconds(data.first_s);
  element("between").textContent = milliseconds(data.between_s);
  element("running").textContent = data.running;
  element("waiting").textContent = data.waiting;
  element("blocks").max = data.blocks_total;
  element("blocks").value = data.blocks_used;
  element("blocks-text").textContent = `${data.blocks_used} / ${data.blocks_total}`;
  const [total, leased, quarantined] = data.slots;
  element("slots").textContent = `${leased} / ${total}` + (quarantined ? `, ${quarantined} lost` : "");
  element("queues").textContent = Object.values(data.queues).join("  ");
  element("steps").textContent = `${data.steps[0]} / ${data.steps[1]}`;
  clockOffsetNs = data.now_ns - performance.now() * 1e6;
  rows = rows.concat(data.spans).slice(-KEPT);
  document.body.dataset.steps = String(Number(document.body.dataset.steps || 0) + data.spans.length);
}

function draw() {
  requestAnimationFrame(draw);
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = 176, lane = height / LANES.length;
  if (canvas.width !== Math.round(width * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = height * scale;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  const style = getComputedStyle(document.body);
  context.font = "13px system-ui, sans-serif";
  LANES.forEach((name, at) => {
    context.fillStyle = style.getPropertyValue("--quiet");
    context.fillText(name, 8, at * lane + lane / 2 + 4);
    context.fillStyle = style.getPropertyValue("--line");
    context.fillRect(0, (at + 1) * lane - 1, width, 1);
  });
  if (clockOffsetNs === null) return;
  const spanNs = Number(element("span").value) * 1e9;
  const endNs = clockOffsetNs + performance.now() * 1e6 - DELAY_S * 1e9, startNs = endNs - spanNs;
  const place = (ns) => LABEL_PX + ((ns - startNs) / spanNs) * (width - LABEL_PX);
  let drawn = 0;
  for (const [seq, program, outcome, ...spans] of rows) {
    spans.forEach((span, at) => {
      if (span === null || span[1] < startNs || span[0] > endNs) return;
      const left = Math.max(place(span[0]), LABEL_PX), right = Math.min(place(span[1]), width);
      context.fillStyle = outcome === "failed" ? COLOURS.failed : COLOURS[program] || COLOURS.decode;
      context.globalAlpha = seq % 2 ? 1 : 0.7;  // neighbours can be told apart
      context.fillRect(left, at * lane + 8, Math.max(right - left, 1), lane - 16);
      drawn += 1;
    });
  }
  context.globalAlpha = 1;
  canvas.dataset.drawn = String(drawn);
}

const source = new EventSource("live");
source.onmessage = (message) => show(JSON.parse(message.data));
source.onerror = () => { element("state").textContent = "no connection, trying again"; };
draw();
