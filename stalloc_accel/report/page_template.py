"""The page's frame, style and script. @TITLE@ and @DATA@ are filled in by page.py."""

PAGE = r"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>@TITLE@</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { --ink: #1c2430; --dim: #5b6675; --line: #d9dee5; --paper: #ffffff; --soft: #f4f6f8;
  --allocated: #2b6cb0; --reserved: #c05621; --planned: #2f855a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --dim: #98a3b3; --line: #343c48; --paper: #14181e;
  --soft: #1d232b; --allocated: #63b3ed; --reserved: #f6ad55; --planned: #68d391; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 82rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.1rem; color: var(--dim); font-weight: 500; margin: 0; }
h2 { font-size: 1rem; margin: 2rem 0 .5rem; }
#verdict { font-size: 1.9rem; font-weight: 650; margin: .2rem 0; }
#explanation { max-width: 60rem; margin: 0 0 1rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0; }
.tile { background: var(--soft); border-radius: .5rem; padding: .6rem 1rem; min-width: 9rem; }
.tile b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.tile span { color: var(--dim); font-size: .85rem; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
@media (max-width: 60rem) { .pair { grid-template-columns: 1fr; } }
figure { margin: 0; } figcaption { color: var(--dim); font-size: .85rem; margin-bottom: .25rem; }
canvas { width: 100%; height: 300px; display: block; border: 1px solid var(--line); border-radius: .35rem;
  background: var(--paper); cursor: crosshair; touch-action: none; }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; margin: 0 .3rem 0 .9rem;
  vertical-align: -1px; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; color: var(--dim); font-weight: 500; }
td, th { padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.place { font-family: ui-monospace, monospace; font-size: .82rem; word-break: break-all; }
.bar { background: var(--allocated); height: .5rem; border-radius: .25rem; min-width: 2px; }
#tip { position: fixed; pointer-events: none; background: var(--ink); color: var(--paper); padding: .2rem .5rem;
  border-radius: .3rem; font-size: .8rem; display: none; z-index: 2; white-space: nowrap; }
button { font: inherit; color: inherit; background: var(--soft); border: 1px solid var(--line); border-radius: .35rem;
  padding: .15rem .7rem; cursor: pointer; }
</style></head><body>
<h1>@TITLE@</h1>
<div id="verdict"></div><p id="explanation"></p>
<div class="tiles" id="tiles"></div>
<h2>What to do</h2><table id="advice"></table>
<h2>Memory over time</h2>
<figure><figcaption class="legend">wheel: zoom, drag: move, double click: all <span id="legend"></span>
<button id="all" type="button">show all</button></figcaption><canvas id="lines"></canvas></figure>
<h2>Blocks</h2><div class="pair" id="pictures"></div>
<h2>Largest holders <span id="holders-when"></span></h2><table id="holders"></table>
<h2>Streams and pools</h2><table id="groups"></table>
<div id="tip"></div>
<script id="data" type="application/json">@DATA@</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent), facts = data.facts, lines = data.lines;
const UNIT = 512, byId = id => document.getElementById(id);
const gib = n => Math.abs(n) >= 2 ** 28 ? (n / 2 ** 30).toFixed(2) + " GiB" : (n / 2 ** 20).toFixed(1) + " MiB";
const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
function row(table, cells, tag) {
  const made = table.appendChild(element("tr"));
  for (const [value, className] of cells) {
    if (value instanceof Node) made.appendChild(element(tag || "td", "", className)).appendChild(value);
    else made.appendChild(element(tag || "td", value, className));
  }
}

// --- text ---
byId("verdict").textContent = facts.verdict[0].toUpperCase() + facts.verdict.slice(1);
byId("explanation").textContent = facts.explanation;
function tile(label, value) {
  if (value === null || value === undefined) return;
  const made = byId("tiles").appendChild(element("div", "", "tile"));
  made.append(element("b", value), element("span", label));
}
tile("allocated at the peak", gib(facts.allocated_peak_bytes));
tile("reserved at the peak", gib(facts.reserved_peak_bytes));
tile("allocated / reserved", facts.efficiency === null ? null : facts.efficiency.toFixed(3));
if (facts.plan) {
  tile("a plan would reserve", gib(facts.plan.reserved_peak_bytes));
  tile("a plan saves", gib(facts.plan.saving_bytes));
  tile("streams kept apart cost", gib(facts.plan.streams_apart_bytes));
}
for (const [name, limit] of Object.entries(facts.limits)) tile("least device memory, " + name, gib(limit.least_bytes));
if (facts.failed_request) {
  tile("failed request", gib(facts.failed_request.size_bytes));
  tile("with a plan it would have fitted", facts.failed_request.would_have_fitted ? "yes" : "no");
}
tile("persistent at the peak", gib(facts.persistent_bytes));
tile("temporary at the peak", gib(facts.temporary_bytes));
for (const one of facts.advice) row(byId("advice"), [[one.text], [gib(one.saves_bytes), "n"]]);
row(byId("holders"), [["place"], ["blocks", "n"], ["bytes", "n"], [""]], "th");
for (const one of facts.holders) {
  const bar = element("div", "", "bar");
  bar.style.width = 12 * one.size_bytes / facts.holders[0].size_bytes + "rem";
  row(byId("holders"), [[one.place, "place"], [one.num_blocks.toLocaleString("en"), "n"], [gib(one.size_bytes), "n"], [bar]]);
}
row(byId("groups"), [["stream"], ["pool"], ["segments", "n"], ["reserved", "n"], ["used", "n"], ["stranded", "n"],
  ["whole free", "n"]], "th");
for (const one of facts.streams_and_pools) row(byId("groups"), [[String(one.stream)], [one.pool], [String(one.segments), "n"],
  [gib(one.reserved_bytes), "n"], [gib(one.used_bytes), "n"], [gib(one.stranded_bytes), "n"], [gib(one.whole_free_bytes), "n"]]);
for (const name of ["allocated", "reserved", "planned"]) {
  const mark = element("i"); mark.style.background = color(name);
  byId("legend").append(mark, name);
}

// --- drawing ---
// One time axis for all drawings, so that zooming one zooms all; each picture has an address axis of its own.
const time = {from: 0, to: Math.max(lines.num_events, 1)}, views = [];
function unpack(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) bytes[i] = raw.charCodeAt(i);
  return new Uint32Array(bytes.buffer);
}
let queued = false;
function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; for (const view of views) view.draw(); });
}
class View {
  constructor(canvas, top) {
    Object.assign(this, {canvas, top, low: 0, high: top});
    views.push(this);
    canvas.addEventListener("wheel", event => this.zoom(event), {passive: false});
    canvas.addEventListener("pointerdown", event => { this.grip = [event.clientX, event.clientY];
      canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { this.grip = null; });
    canvas.addEventListener("pointermove", event => this.move(event));
    canvas.addEventListener("pointerleave", () => { byId("tip").style.display = "none"; });
    canvas.addEventListener("dblclick", showAll);
  }
  zoom(event) {
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect(), by = Math.exp(event.deltaY * 0.0015);
    const t = time.from + (event.clientX - box.left) / box.width * (time.to - time.from);
    time.from = Math.max(0, t - (t - time.from) * by);
    time.to = Math.min(lines.num_events, Math.max(time.from + 4, t + (time.to - t) * by));
    if (event.shiftKey || this.isPicture) {
      const y = this.high - (event.clientY - box.top) / box.height * (this.high - this.low);
      this.low = Math.max(0, y - (y - this.low) * by);
      this.high = Math.min(this.top, Math.max(this.low + 4096, y + (this.high - y) * by));
    }
    redraw();
  }
  move(event) {
    const box = this.canvas.getBoundingClientRect();
    if (this.grip) {
      const dt = (this.grip[0] - event.clientX) / box.width * (time.to - time.from);
      const shift = Math.min(Math.max(dt, -time.from), lines.num_events - time.to);
      time.from += shift; time.to += shift;
      if (this.isPicture) {
        const dy = (event.clientY - this.grip[1]) / box.height * (this.high - this.low);
        const lift = Math.min(Math.max(dy, -this.low), this.top - this.high);
        this.low += lift; this.high += lift;
      }
      this.grip = [event.clientX, event.clientY];
      redraw();
      return;
    }
    const t = time.from + (event.clientX - box.left) / box.width * (time.to - time.from);
    const y = this.high - (event.clientY - box.top) / box.height * (this.high - this.low);
    const tip = byId("tip"), text = this.tell(t, y);
    tip.style.display = text ? "block" : "none";
    tip.textContent = text;
    tip.style.left = Math.min(event.clientX + 14, innerWidth - 320) + "px"; tip.style.top = event.clientY + 14 + "px";
  }
  begin() {
    const box = this.canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
    this.width = box.width; this.height = box.height;
    if (this.canvas.width !== Math.round(box.width * ratio)) {
      this.canvas.width = Math.round(box.width * ratio); this.canvas.height = Math.round(box.height * ratio);
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    return pen;
  }
  x(t) { return (t - time.from) / (time.to - time.from) * this.width; }
  y(v) { return this.height - (v - this.low) / (this.high - this.low) * this.height; }
  axis(pen) {
    pen.fillStyle = color("dim"); pen.strokeStyle = color("line"); pen.font = "11px system-ui"; pen.lineWidth = 1;
    for (let i = 1; i < 5; ++i) {
      const v = this.low + (this.high - this.low) * i / 5;
      pen.beginPath(); pen.moveTo(0, this.y(v)); pen.lineTo(this.width, this.y(v)); pen.stroke();
      pen.fillText(gib(v), 4, this.y(v) - 3);
    }
    pen.fillText("event " + Math.round(time.from).toLocaleString("en"), 4, this.height - 4);
    const right = Math.round(time.to).toLocaleString("en");
    pen.fillText(right, this.width - pen.measureText(right).width - 4, this.height - 4);
  }
}
class Lines extends View {
  draw() {
    const pen = this.begin();
    for (const name of ["reserved", "allocated"]) {
      pen.beginPath(); pen.lineWidth = 1.5; pen.strokeStyle = color(name);
      const values = lines[name], events = lines.events;
      for (let i = 0; i < events.length; ++i) {
        const last = i + 1 < events.length ? events[i + 1] : lines.num_events;
        if (last < time.from || events[i] > time.to) continue;
        pen.lineTo(this.x(events[i]), this.y(values[i])); pen.lineTo(this.x(last), this.y(values[i]));
      }
      pen.stroke();
    }
    if (lines.planned) {
      pen.beginPath(); pen.setLineDash([6, 4]); pen.strokeStyle = color("planned");
      pen.moveTo(0, this.y(lines.planned)); pen.lineTo(this.width, this.y(lines.planned)); pen.stroke(); pen.setLineDash([]);
    }
    this.axis(pen);
  }
  tell(t) {
    let low = 0, high = lines.events.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (lines.events[middle] <= t) low = middle; else high = middle - 1; }
    return lines.events.length ? "event " + lines.events[low].toLocaleString("en") + ": allocated " + gib(lines.allocated[low]) +
      ", reserved " + gib(lines.reserved[low]) : "";
  }
}
class Picture extends View {
  constructor(canvas, picture) {
    super(canvas, Math.max(picture.total, 4096));
    this.isPicture = true;
    [this.born, this.done, this.offset, this.size] = picture.columns.map(unpack);
  }
  draw() {
    const pen = this.begin(), scaleX = this.width / (time.to - time.from), scaleY = this.height / (this.high - this.low);
    for (let i = 0; i < this.born.length; ++i) {
      if (this.done[i] < time.from || this.born[i] > time.to) continue;
      const low = this.offset[i] * UNIT, high = low + this.size[i] * UNIT;
      if (high < this.low || low > this.high) continue;
      const height = (high - low) * scaleY;
      if (height < 0.15) continue;  // thinner than can be seen
      // Like sizes have like colours, so that the pattern of the layers shows.
      pen.fillStyle = "hsl(" + (this.size[i] * 2654435761 >>> 0) % 360 + " 55% 55% / .85)";
      pen.fillRect((this.born[i] - time.from) * scaleX, this.height - (high - this.low) * scaleY,
        Math.max((this.done[i] - this.born[i]) * scaleX, 0.6), Math.max(height, 0.6));
    }
    this.axis(pen);
  }
  tell(t, y) {
    for (let i = 0; i < this.born.length; ++i) {
      const low = this.offset[i] * UNIT;
      if (this.born[i] <= t && t < this.done[i] && low <= y && y < low + this.size[i] * UNIT)
        return gib(this.size[i] * UNIT) + ", events " + this.born[i].toLocaleString("en") + " to " +
          (this.done[i] >= lines.num_events ? "the end" : this.done[i].toLocaleString("en"));
    }
    return "";
  }
}
function showAll() {
  time.from = 0; time.to = Math.max(lines.num_events, 1);
  for (const view of views) { view.low = 0; view.high = view.top; }
  redraw();
}
if (lines.num_events) new Lines(byId("lines"), Math.max(lines.planned, ...lines.reserved, ...lines.allocated, 4096) * 1.08);
else byId("lines").replaceWith(element("p", "The snapshot has no history."));
for (const picture of data.pictures) {
  const figure = byId("pictures").appendChild(element("figure"));
  figure.append(element("figcaption", picture.title + ": " + gib(picture.total) +
    (picture.left_out ? ", without " + picture.left_out.toLocaleString("en") + " blocks" : "")), element("canvas"));
  new Picture(figure.lastChild, picture);
}
byId("all").addEventListener("click", showAll);
addEventListener("resize", redraw);
for (const view of views) view.draw();
document.body.dataset.ready = "yes";  // a test waits for it
</script></body></html>
"""
