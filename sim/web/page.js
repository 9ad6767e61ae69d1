"use strict";
// Runs the simulator (page.c), and shows what it describes. The picture is AHEAD ms behind, so that messages travel.
const MODULE = "@MODULE@";
const AHEAD = 2, KEPT = 3000, SHOWN = 400;
const DECISIONS = /^(EPOCH|VERDICT|OUTCOME|SYNC_END|SYNC_PLAN|CANDIDATE)/;
const LISTED = /^(EPOCH|VERDICT|SYNC_PLAN|CANDIDATE)/;
const NEWS = /^(master: (lost|admitted|epoch|starts|ends|run|expelled)|peer \d+: (starts|ends|is stopped|enters|dies)|fault)/;
const $ = (id) => document.getElementById(id);

let wasm, run, shown = 0, seed = 1, playing = true, before = null, lines = [], dots = [], nodes = [];

function read(pointer) {
  const bytes = new Uint8Array(wasm.memory.buffer, pointer), end = bytes.indexOf(0);
  return JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)));
}

function begin() {
  wasm.page_begin(seed, Number($("peers").value));
  [shown, lines, dots] = [0, [], []];
  $("log").replaceChildren();
  take();
  lay();
  draw();
}

// What was said, and when it came.
function take() {
  run = read(wasm.page_describe());
  for (const { text } of run.lines) {
    const match = /^\s*([\d.]+) ms\s+(.*)$/.exec(text);
    if (!match) continue;
    const at = Number(match[1]), said = /^(master|peer (\d+)) <- (master|\d+): (.*)$/.exec(match[2]);
    const decision = Boolean(said) && said[3] === "master" && DECISIONS.test(said[4]);
    lines.push({ at, text: match[2], decision, news: (decision && LISTED.test(said[4])) || NEWS.test(match[2]) });
    if (said) dots.push({ at, to: said[2] ? Number(said[2]) : 0, from: said[3] === "master" ? 0 : Number(said[3]), decision, data: Boolean(said[2]) && said[3] !== "master" });
  }
  lines = lines.slice(-KEPT);
}

// ---- the picture ----

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const place = (number) => { // 0: the master
  if (number === 0) return [320, 48];
  const angle = Math.PI * (run.peers.length === 1 ? 0.5 : 0.02 + (0.96 * (run.peers.length - number)) / (run.peers.length - 1));
  return [320 + 225 * Math.cos(angle), 180 + 200 * Math.sin(angle)];
};

function lay() {
  nodes = [];
  for (let number = 0; number <= run.peers.length; number++) {
    const [x, y] = place(number), height = number === 0 ? 76 : 100;
    const node = svg("g", { class: "process", tabindex: 0, role: "button", transform: `translate(${x - 75} ${y - height / 2})` }, svg("rect", { width: 150, height, rx: 8 }));
    for (let line = 0; line < (number === 0 ? 3 : 4); line++) node.append(svg("text", { x: 75, y: 20 + 18 * line, class: line ? "small" : "" }));
    for (let leaf = 0; number > 0 && leaf < 6; leaf++) node.append(svg("rect", { class: "leaf", x: 19 + 19 * leaf, y: 80, width: 16, height: 13, style: "stroke: none" }));
    node.addEventListener("click", () => harm(number));
    node.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); harm(number); } });
    nodes.push(node);
  }
  $("world").replaceChildren(svg("g", { id: "links" }), ...nodes, svg("g", { id: "dots" }));
}

function write(node, texts) {
  node.querySelectorAll("text").forEach((text, i) => { text.textContent = texts[i] ?? ""; });
}

function draw() {
  const links = [];
  run.peers.forEach((peer, i) => {
    for (const other of peer.links ?? []) if (other > i) links.push([i + 1, other + 1]);
    if (peer.running && peer.does !== "looks for a master" && run.master.running) links.push([0, i + 1]);
    const node = nodes[i + 1];
    node.setAttribute("class", `process${peer.running ? "" : " gone"}${peer.stopped ? " stopped" : ""}`);
    write(node, peer.running ? [`peer ${i + 1}`, peer.stopped ? "is stopped" : peer.does, peer.member ? `epoch ${peer.epoch}, ${peer.world} member${peer.world === 1 ? "" : "s"}` : "no member", `revision ${peer.revision}, ${peer.hash}`] : [`peer ${i + 1}`, "has ended", "click to start it"]);
    node.querySelectorAll(".leaf").forEach((leaf, k) => { leaf.style.fill = peer.running ? `hsl(${peer.leaves[k]} 65% 55%)` : "none"; });
  });
  nodes[0].setAttribute("class", `process${run.master.running ? "" : " gone"}`);
  write(nodes[0], run.master.running ? ["master", run.master.does, `epoch ${run.master.epoch}, ${run.master.peers} members`] : ["master", "has ended", "click to start it"]);
  $("links").replaceChildren(...links.map(([a, b]) => {
    const [[x1, y1], [x2, y2]] = [place(a), place(b)];
    return svg("line", { class: "link", x1, y1, x2, y2 });
  }));
  dots = dots.filter((dot) => dot.at > shown);
  $("dots").replaceChildren(...dots.filter((dot) => dot.at < shown + AHEAD).slice(0, 300).map((dot) => {
    const share = 1 - (dot.at - shown) / AHEAD, [[x1, y1], [x2, y2]] = [place(dot.from), place(dot.to)];
    return svg("circle", { class: dot.decision ? "decision" : dot.data ? "data" : "control", r: dot.decision ? 7 : 4, cx: x1 + share * (x2 - x1), cy: y1 + share * (y2 - y1) });
  }));
  $("time").textContent = `${shown.toFixed(1)} ms, seed ${seed}, heartbeat limit ${run.limit} ms`;
  $("failure").textContent = run.failure && `An invariant does not hold: ${run.failure}`;
  $("counts").textContent = `${run.committed} operations committed, ${run.redone} redone without a lost member, ${run.lost} lost; ${run.fetched} states fetched.`;
}

function list() {
  const log = $("log"), wanted = lines.filter((line) => line.at <= shown && ($("all").checked || line.news)).slice(-SHOWN);
  const key = `${wanted.length} ${wanted.at(-1)?.at} ${wanted[0]?.at}`;
  if (log.dataset.key === key) return;
  log.dataset.key = key;
  log.replaceChildren(...wanted.map((line) => {
    const item = document.createElement("li");
    item.textContent = `${line.at.toFixed(1)} ${line.text}`;
    item.className = line.decision ? "decision" : /: (ends|starts|is stopped)/.test(line.text) ? "hand" : "";
    return item;
  }));
  log.scrollTop = log.scrollHeight;
}

// ---- what the reader does ----

function harm(number) {
  const kind = $("harm").value, slot = number - 1;
  if (number === 0) run.master.running ? wasm.page_end_master() : wasm.page_start_master();
  else if (!run.peers[slot].running) wasm.page_start_peer(slot);
  else if (kind === "kill" || kind === "dark") wasm.page_end_peer(slot, kind === "kill");
  else wasm.page_stop_peer(slot, kind === "stop" ? 150 : 600);
  take();
  draw();
}

$("play").addEventListener("click", () => {
  playing = !playing;
  $("play").textContent = playing ? "pause" : "continue";
  $("play").setAttribute("aria-pressed", playing);
});
$("again").addEventListener("click", () => { seed++; begin(); });
$("peers").addEventListener("change", begin);
$("all").addEventListener("change", list);

function frame(now) {
  const seconds = before === null ? 0 : Math.min(0.1, (now - before) / 1000);
  before = now;
  if (playing && !run.failure) {
    shown += seconds * Number($("speed").value);
    wasm.page_go(shown + AHEAD);
    take();
    draw();
    list();
  }
  requestAnimationFrame(frame);
}

const bytes = Uint8Array.from(atob(MODULE), (char) => char.charCodeAt(0));
const system = new Proxy({}, { get: (_, name) => (name === "proc_exit" ? () => { throw new Error("the simulator has ended"); } : () => 0) });
const names = { environ_get: system.x, environ_sizes_get: system.x, fd_write: system.x, proc_exit: system.proc_exit };
WebAssembly.instantiate(bytes, { wasi_snapshot_preview1: names }).then(({ instance }) => {
  wasm = instance.exports;
  wasm._initialize();
  begin();
  requestAnimationFrame(frame);
});
