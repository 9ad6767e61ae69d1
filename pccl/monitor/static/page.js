"use strict";
// The history of a run, from /events (docs/event-files.md#pccl-web). Everything shown is asked of `run` for one time.

const VALUES = { operations: 0, operationMs: 1, busy: 2, live: 3, oldest: 4, lateMs: 5, silent: 6, processor: 7 };
const PATIENCE_SECONDS = 40; // with the server, which answers within 20 s
const WAITS_SECONDS = 2, SILENT_SECONDS = 2, ROW = 20, AXIS = 22, EVENTS_MOST = 300, LINKS_MOST = 64;
const RECENT_SECONDS = 60; // for which a loss is news
const LIVE_SECONDS = [20, 120]; // of the time line of a run that goes on, until the reader zooms
const REPORTS_MOST = 6;
const NAME_MOST = { table: 18, ring: 14, line: 15 }; // letters
const GAP_SECONDS = 20; // between samples; more is time without figures
const NO_VALUES = []; // of a member before its first sample
const SLOW_SHARE = 0.5; // of the usual speed of a link
const labels = () => Math.min(150, 0.3 * $("line").clientWidth); // width of the names beside the time line

const run = {
  members: new Map(), // id: {name, address, spans: [[from, to]], times: [], values: []}
  links: new Map(), // "from to": {times: [], values: []}; a value of null: nothing goes there
  findings: [], // {from, to, finding, member, other, cost, text}
  epochs: [], // {at, epoch, members}
  gone: [], // [from, to] without an answer, and why
  events: [], // those that are listed
  reports: new Map(), // id: {times: [], values: []}: numbers of the program, by name
  states: { times: [], values: [] }, // shared state: {groups: {group: state}, others: {id: state}}, [revision, hash, replaced] each
  joiners: { times: [], values: [] }, // {id: {name, does, done, total, eta}}: peers on their way into the run
  failovers: [], // times at which another master took the run up
  domain: "", // what all names end with
  sums: [], // {at, operations, spent, useful}: since the beginning; seconds of members, and of these, those without waits
  first: Infinity, last: -Infinity, live: true,
};
const drawn = { top: 0, height: 1, rows: [] }; // the rows of the time line
const view = { from: 0, to: 1, at: null, chosen: false }; // `at`: the time that is shown; null: the newest

const $ = (id) => document.getElementById(id);

// ---- what happened ----

function series(map, key) {
  if (!map.has(key)) map.set(key, { times: [], values: [] });
  return map.get(key);
}

function memberOf(event) {
  const id = event.member;
  if (!run.members.has(id)) run.members.set(id, { name: "", address: "", spans: [], times: [], values: [] });
  const member = run.members.get(id);
  const open = member.spans.at(-1);
  if (!open || open[1] !== Infinity) member.spans.push([event.at, Infinity]);
  const renamed = member.name !== event.name;
  Object.assign(member, { name: event.name, address: event.address, group: event.group, rank: event.rank });
  if (renamed) run.domain = commonEnd([...run.members.values()].map((one) => one.name).filter(Boolean));
}

// What all names end with, from a dot on, such as the domain of the hosts.
function commonEnd(names) {
  let end = names[0] ?? "";
  for (const name of names) while (!name.endsWith(end)) end = end.slice(1);
  return names.length > 1 && end.includes(".") ? end.slice(end.indexOf(".")) : "";
}

function take(event) {
  run.first = Math.min(run.first, event.at);
  run.last = Math.max(run.last, event.at);
  const { kind, at } = event;
  if (kind === "joined" || kind === "member") memberOf(event);
  else if (kind === "failover") run.failovers.push(at);
  else if (kind === "left") {
    const open = run.members.get(event.member)?.spans.at(-1);
    if (open) open.splice(1, 2, at, event);
  } else if (kind === "epoch") run.epochs.push(event);
  else if (kind === "master") {
    const open = run.gone.at(-1);
    if (!event.answers) run.gone.push([at, Infinity, event.text]);
    else if (open && open[1] === Infinity) open[1] = at;
  } else if (kind === "finding") {
    if (!findingsAt(at).some((one) => sameFinding(one, event))) run.findings.push({ ...event, from: at, to: Infinity });
    else return;
  } else if (kind === "over") {
    const open = run.findings.find((one) => one.to === Infinity && sameFinding(one, event));
    if (open) open.to = at;
  } else if (kind === "sample") {
    for (const [map, part] of [[run.members, event.members], [run.links, event.links]])
      for (const [key, values] of Object.entries(part)) {
        const one = series(map, key);
        one.times.push(at);
        one.values.push(values);
      }
    for (const [id, numbers] of Object.entries(event.report ?? {})) {
      const one = series(run.reports, id);
      one.times.push(at);
      one.values.push(numbers);
    }
    if (event.joiners) {
      run.joiners.times.push(at);
      run.joiners.values.push(event.joiners);
    }
    if (event.state?.groups) {
      run.states.times.push(at);
      run.states.values.push(event.state);
    }
    for (const key of event.quiet) {
      const one = series(run.links, key);
      one.times.push(at);
      one.values.push(null);
    }
    addUp(at);
  }
  if (kind !== "sample" && kind !== "member") run.events.push(event);
}

// How long a member waits for others in a second: until the latest begins, or all of it, if an operation hangs.
function waits(values, latest) {
  if (values[VALUES.silent] >= SILENT_SECONDS || values[VALUES.oldest] >= WAITS_SECONDS) return 1;
  return Math.min(1, Math.max(0, ((latest - values[VALUES.lateMs]) / 1000) * values[VALUES.operations]));
}

function addUp(at) {
  const last = run.sums.at(-1) ?? { at, operations: 0, spent: 0, useful: 0 };
  const seconds = Math.min(GAP_SECONDS, at - last.at), sum = { ...last, at };
  const values = membersAt(at).map(([, member]) => member.values?.at(-1)).filter(Boolean);
  const latest = Math.max(0, ...values.map((one) => one[VALUES.lateMs]));
  sum.operations += seconds * Math.max(0, ...values.map((one) => one[VALUES.operations]));
  sum.spent += seconds * values.length;
  for (const one of values) sum.useful += seconds * (1 - waits(one, latest));
  run.sums.push(sum);
}

const sameFinding = (a, b) => a.finding === b.finding && a.member === b.member && a.other === b.other;

// ---- what was at a time ----

function before(times, at) { // the place of the last one that is not later; -1: none
  let low = 0, high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

const valuesAt = (one, at) => one.values?.[before(one.times, at)] ?? null;
const isIn = (member, at) => member.spans?.some(([from, to]) => from <= at && at < to) ?? false;
const membersAt = (at) => [...run.members].filter(([, member]) => isIn(member, at));
const findingsAt = (at) => run.findings.filter((one) => one.from <= at && at < one.to);
const lostAt = (at) => [...run.members].flatMap(([id, member]) => // the newest first
  (member.spans ?? []).filter(([, to]) => to <= at && at - to < RECENT_SECONDS && !isIn(member, at)).slice(-1).map(([, to, event]) => [id, to, event]))
  .sort((a, b) => b[1] - a[1]);
const shownTime = () => view.at ?? run.last;
// Where there is no room for a whole name: without the domain, and with its two ends.
function brief(id, most) {
  const { name } = run.members.get(id), letters = [...(name ? name.slice(0, name.length - run.domain.length) || name : id)];
  return letters.length <= most ? letters.join("") : [...letters.slice(0, (most >> 1) - 1), "…", ...letters.slice(-(most - (most >> 1)))].join("");
}
const rankOf = (id) => { const rank = run.members.get(id)?.rank; return rank === undefined ? "" : `rank ${rank}`; }; // older files have none
const label = (id) => { const name = run.members.get(id)?.name; return name ? `${name} (${[id, rankOf(id)].filter(Boolean).join(", ")})` : id; };

// ---- numbers and times as text ----

function rate(bytes) {
  for (const unit of ["B/s", "kB/s", "MB/s", "GB/s"]) {
    if (bytes < 1000 || unit === "GB/s") return `${bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)} ${unit}`;
    bytes /= 1000;
  }
}

const digits = (value) => (value < 0.001 ? "0" : value < 10 ? value.toPrecision(2) : Math.round(value).toString());
const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false });
const counted = (count) => `${count} ${count === 1 ? "member" : "members"}`;
const ago = (seconds) => (seconds < 1 ? "just now" : seconds < 100 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`);
const span = (seconds) => (seconds < 100 ? `${Math.round(seconds)} s` : seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`);
const moment = (at) => `${new Date(at * 1000).toLocaleDateString()} ${clock(at)}`;

function mismatch(event) {
  return `${label(event.member ?? "")} had other content of the shared state, ${event.repaired ? `repaired at revision ${event.revision}` : "not repaired"}`;
}

const departure = (event) => event?.text ?? "was lost, or left"; // older files have no reason
const wasLost = (event) => !["drained", "left", "ended"].includes(event?.reason);

function told(event) {
  const who = event.member ? label(event.member) : "";
  return {
    acted: `${event.action === "drain" ? "drained" : "expelled"} by hand: ${who}`, joined: `${who} joined`, left: `${who} ${departure(event)}`,
    epoch: event.epoch ? `epoch ${event.epoch}: ${counted(event.members)}` : "the master serves no run",
    failover: `a master has taken the run up (generation ${event.generation})`, master: event.answers ? "the master answers" : event.text,
    protection: `${who}: ${event.protection} ${event.missing ? `missing${event.steps == null ? "" : `, a loss now costs ${event.steps} steps`}` : "there again"}`,
    state_mismatch: mismatch(event),
    finding: event.text, over: `no longer: ${event.finding?.replaceAll("_", " ")} ${who}${event.other ? ` to ${label(event.other)}` : ""}`,
  }[event.kind] ?? event.kind;
}

// ---- the page ----

function draw() {
  const at = shownTime();
  if (run.last === -Infinity) return;
  if (view.at === null && run.live) {
    const width = view.chosen ? view.to - view.from : Math.min(LIVE_SECONDS[1], Math.max(LIVE_SECONDS[0], run.last - run.first + 1));
    [view.from, view.to] = [run.last - width, run.last];
  }
  const members = membersAt(at), findings = findingsAt(at);
  drawState(at, members, findings);
  drawMembers(at, members, findings);
  drawJoiners(at);
  drawRing(at, members, findings);
  drawLine(at);
}

function drawState(at, members, findings) {
  const gone = run.gone.find(([from, to]) => from <= at && at < to);
  const epoch = run.epochs[before(run.epochs.map((one) => one.at), at)];
  const values = members.map(([, member]) => valuesAt(member, at)).filter(Boolean);
  const operations = Math.max(0, ...values.map((one) => one[VALUES.operations]));
  const sent = [...run.links.values()].reduce((sum, one) => sum + (valuesAt(one, at)?.[0] ?? 0), 0);
  const count = members.length || epoch?.members || 0;
  const parts = count ? [counted(count), `${digits(operations)} operations/s`] : ["no run"];
  if (sent) parts.push(rate(sent));
  $("state").textContent = gone ? "No master answers" : parts.join(", ");
  const gravest = findings.reduce((most, one) => (most && most.cost >= one.cost ? most : one), null);
  const more = findings.length > 1 ? ` (and ${findings.length - 1} more)` : "";
  $("finding").textContent = gone ? gone[2] : gravest ? gravest.text + more : count ? "Nothing slows operations down." : "";
  const lost = gone ? [] : lostAt(at);
  const other = gone ? undefined : run.events.findLast((one) => one.kind === "state_mismatch" && one.at <= at && at - one.at < RECENT_SECONDS);
  const mismatched = other ? ` ${mismatch(other)}, ${ago(at - other.at)}.` : "";
  $("news").textContent = lost.length === 0 ? mismatched.trim()
    : `${lost.slice(0, 3).map(([id, , event]) => `${label(id)} ${departure(event)}`).join("; ")}${lost.length > 3 ? `; and ${lost.length - 3} more` : ""}, ${ago(at - lost[0][1])}; ${count} ${count === 1 ? "continues" : "continue"}.${mismatched}`;
  const sum = run.sums[before(run.sums.map((one) => one.at), at)];
  const share = sum?.spent ? `, ${Math.round((100 * sum.useful) / sum.spent)}% of the members' time without waits` : "";
  $("progress").textContent = sum && epoch ? `Epoch ${epoch.epoch}, ${Math.round(sum.operations).toLocaleString("en")} operations in ${span(at - run.first)}${share}` : "";
  $("report").textContent = gone ? "" : reported(members.map(([id]) => id), at);
  document.querySelector("header").className = gone ? "fails" : gravest?.finding === "hung" ? "fails" : gravest || lost.some(([, , event]) => wasLost(event)) || other ? "warns" : "";
  document.title = gone ? "pccl: no master" : gravest ? `pccl: ${gravest.finding.replaceAll("_", " ")}` : `pccl: ${counted(count)}`;
  $("when").textContent = view.at === null ? (run.live ? "" : moment(at)) : moment(at);
  $("live").setAttribute("aria-pressed", view.at === null);
  const shown = run.events.filter((one) => one.at <= at).slice(-EVENTS_MOST).reverse();
  $("events").replaceChildren(...shown.map((one) => {
    const item = document.createElement("li"), time = document.createElement("time");
    time.textContent = clock(one.at);
    item.append(time, told(one));
    return item;
  }));
}

// The numbers that programs report, as means over the members that have them.
function reported(ids, at) {
  const found = new Map();
  for (const id of ids)
    for (const [name, value] of Object.entries(valuesAt(run.reports.get(id) ?? {}, at) ?? {}))
      if (value !== null) found.set(name, [...(found.get(name) ?? []), value]);
  return [...found].slice(0, REPORTS_MOST).map(([name, values]) =>
    `${name} ${Number((values.reduce((sum, one) => sum + one, 0) / values.length).toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 })}`).join(", ");
}

// What peers do that are on their way into the run.
function drawJoiners(at) {
  $("joiners").replaceChildren(...Object.entries(valuesAt(run.joiners, at) ?? {}).map(([id, one]) => {
    const item = document.createElement("li"), size = (bytes) => rate(bytes).replace("/s", "");
    item.textContent = `${one.name ? `${one.name} (${id})` : id} ${one.does}`;
    if (one.total) item.textContent += `: ${size(one.done)} of ${size(one.total)}${one.eta === null ? "" : `, about ${span(one.eta)} left`}`;
    if (one.total) item.append(Object.assign(document.createElement("progress"), { value: one.done, max: one.total }));
    return item;
  }));
}

// The shared state of a member after its last sync, and why it is marked.
function stateOf(id, member, at) {
  const states = valuesAt(run.states, at);
  if (!states) return { text: "", why: "" };
  const differs = id in states.others, state = differs ? states.others[id] : states.groups[member.group];
  if (!state) return { text: "none", why: differs ? "it has not synced yet" : "" };
  const why = state[2] ? "at the last sync its content of this revision was another than its group's, and was replaced"
    : differs ? "most members of its group have another state" : "";
  return { text: `${state[0]} ${state[1]}`, why };
}

function drawMembers(at, members, findings) {
  const head = ["member", "name", "operations / s", "ms each", "in operations", "in flight", "oldest s", "late ms", "silent s", "thread"];
  const synced = valuesAt(run.states, at) !== null;
  if (synced) head.splice(2, 0, "state");
  const row = (cells, tag) => {
    const made = document.createElement("tr");
    for (const cell of cells) made.appendChild(document.createElement(tag)).textContent = cell;
    return made;
  };
  const acts = run.acts && run.live && view.at === null;
  if (acts && $("members").contains(document.activeElement)) return; // a button is about to be pressed
  if (acts) head.splice(2, 0, "");
  $("members").replaceChildren(row(head, "th"), ...members.map(([id, member]) => {
    const v = valuesAt(member, at) ?? new Array(8).fill(0);
    const share = (value) => `${Math.round(100 * value)}%`;
    const made = row([id, member.name && `${brief(id, NAME_MOST.table)} ${member.rank ?? ""}`.trim(), digits(v[0]), digits(v[1]), share(v[2]), v[3], digits(v[4]), digits(v[5]), digits(v[6]), share(v[7])], "td");
    made.className = findings.some((one) => one.member === id || one.other === id) ? "named" : "";
    made.title = [[rankOf(id), member.name].filter(Boolean).join(", "), member.address].filter(Boolean).join(" at ");
    const state = stateOf(id, member, at);
    if (synced) Object.assign(made.insertBefore(document.createElement("td"), made.children[2]), { textContent: state.text, title: state.why, className: state.why ? "differs" : "" });
    made.dataset.member = id;
    if (acts) made.insertBefore(document.createElement("td"), made.children[2]).append(actButton("drain", id), " ", actButton("expel", id), " ", actButton("stacks", id));
    return made;
  }));
}

// Asks once more before it changes the run. The server takes actions only from those who have the master's key.
function actButton(action, id) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = action;
  made.dataset.action = action;
  made.addEventListener("blur", () => { made.textContent = action; });
  made.addEventListener("click", async () => {
    if (action !== "stacks" && made.textContent === action) {
      made.textContent = `${action} ${run.members.get(id).name || id}?`;
      return;
    }
    made.blur();
    const answer = await fetch("act", { method: "POST", headers: { "X-PCCL": "act" }, body: JSON.stringify({ action, member: id }) });
    const text = await answer.text();
    $("acted").textContent = answer.ok ? "" : `${action} ${label(id)}: ${text}`;
    $("stacks").hidden = !answer.ok || action !== "stacks";
    $("stacks").textContent = `${label(id)}\n${text}`;
  });
  return made;
}

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}

// Whether a finding names the link, or the member whose links these are.
const namesLink = (one, from, to) => (one.other ? one.member === from && one.other === to
  : one.finding === "slow_sender" ? one.member === from : one.finding === "slow_receiver" && one.member === to);

function drawRing(at, members, findings) {
  const lost = new Map(lostAt(at).map(([id, , event]) => [id, event])), ids = [...run.members.keys()].filter((id) => lost.has(id) || isIn(run.members.get(id), at));
  const places = new Map(ids.map((id, i) => {
    const angle = (2 * Math.PI * i) / ids.length - Math.PI / 2;
    return [id, [95 * Math.cos(angle), 95 * Math.sin(angle)]];
  }));
  const rates = [...run.links].map(([key, one]) => [key.split(" "), valuesAt(one, at)])
    .filter(([[from, to], v]) => v && places.has(from) && places.has(to) && !lost.has(from) && !lost.has(to))
    .sort((a, b) => b[1][0] - a[1][0]).slice(0, LINKS_MOST);
  const most = Math.max(1, ...rates.map(([, v]) => v[0]));
  const speeds = rates.filter(([, v]) => v[0] >= most / 2).map(([, v]) => v[0] / (v[1] || 1)).sort((a, b) => a - b), usual = speeds[(speeds.length - 1) >> 1] || 1;
  const shapes = rates.map(([[from, to], v]) => {
    const [[x1, y1], [x2, y2]] = [places.get(from), places.get(to)];
    const length = Math.hypot(x2 - x1, y2 - y1) || 1, aside = [2 * (y1 - y2) / length, 2 * (x2 - x1) / length]; // apart from the way back
    const share = v[0] / (v[1] || 1) / usual, carries = v[0] >= most / 2, named = findings.some((one) => namesLink(one, from, to));
    const line = svg("line", { x1: x1 + aside[0], y1: y1 + aside[1], x2: x2 + aside[0], y2: y2 + aside[1], "data-link": `${from} ${to}`,
      "stroke-width": 0.5 + 3 * Math.sqrt(v[0] / most), class: named ? "named" : !carries ? "faint" : share < SLOW_SHARE ? "slow" : "" });
    line.append(svg("title", {}, `${label(from)} to ${label(to)}: ${rate(v[0])}, ${carries ? `${Math.round(100 * share)}% of the usual speed, ` : ""}${v[3]} ms, ${(100 * v[2]).toFixed(2)}% sent again`));
    return line;
  });
  const sign = { straggler: "slow", hung: "hangs", slow_sender: "sends slowly", slow_receiver: "receives slowly" };
  for (const [id, [x, y]] of places) {
    const v = valuesAt(run.members.get(id), at), silent = v && v[VALUES.silent] >= SILENT_SECONDS;
    const finding = findings.find((one) => one.member === id && !one.other), gone = lost.has(id);
    shapes.push(svg("circle", { cx: x, cy: y, r: ids.length > 64 ? 1.5 : 5, "data-member": id,
      class: gone ? "lost" : finding?.finding === "hung" || silent ? "named silent" : finding ? "named" : "" }));
    if (ids.length > 32 && !finding && !gone) continue;
    const state = gone ? (wasLost(lost.get(id)) ? "lost" : "left") : sign[finding?.finding] ?? (silent ? "silent" : "");
    const spot = { x: x * 1.08, y: y * 1.13 + 3, "text-anchor": x < -20 ? "end" : x > 20 ? "start" : "middle" };
    const text = svg("text", spot, brief(id, NAME_MOST.ring));
    text.append(svg("title", {}, label(id)));
    if (state) text.append(svg("tspan", { class: "state", x: spot.x, dy: y < -40 ? -11 : 11 }, state));
    shapes.push(text);
  }
  $("ring").replaceChildren(...shapes);
  $("note").textContent = rates.length ? "Width: rate. Colour: blue as usual, pink below half of the usual speed, orange named by a finding."
    : "No data passes over connections. Members of one host exchange it through shared memory.";
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["ink", "faint", "soft", "busy", "idle", "waits", "silent", "good", "gone", "late"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
}

function drawLine(at) {
  const canvas = $("line"), rows = [...run.members].filter(([, m]) => m.spans?.some(([from, to]) => from < view.to && to > view.from));
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth, left = labels();
  const row = rows.length > 36 ? Math.max(3, Math.floor(720 / rows.length)) : ROW;
  const height = ROW + Math.max(rows.length, 1) * row + AXIS;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  Object.assign(drawn, { top: ROW, height: row, rows: rows.map(([id]) => id) });
  const pen = canvas.getContext("2d"), c = colours();
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  const x = (time) => left + ((time - view.from) / (view.to - view.from)) * (width - left);
  const inside = (time) => Math.min(width, Math.max(left, x(time)));
  const newest = Math.min(view.to, run.last);
  const mark = (time, text, colour, bottom) => {
    if (time < view.from || time > view.to) return;
    pen.fillStyle = colour;
    pen.textAlign = "center";
    pen.fillText(text, x(time), bottom - 5);
    pen.textAlign = "left";
  };
  pen.fillStyle = c.soft;
  pen.fillText("master", 0, ROW - 6, left - 8);
  for (const [from, to] of run.gone) {
    pen.fillStyle = c.gone;
    pen.fillRect(inside(from), 0, Math.max(0, inside(Math.min(to, newest)) - inside(from)), height - AXIS);
    if (to !== Infinity) mark(to, "◆", c.good, ROW);
  }
  for (const time of run.failovers) mark(time, "◆", c.good, ROW);
  // What members do in each column: the latest begin of that moment is asked for once.
  const first = Math.floor(left), columns = [];
  for (let pixel = first; pixel < width; pixel++) {
    const time = view.from + ((pixel - left) / (width - left)) * (view.to - view.from);
    columns.push({ time, values: rows.map(([, member]) => (time <= newest && isIn(member, time) ? valuesAt(member, time) ?? NO_VALUES : null)) });
    columns.at(-1).latest = Math.max(0, ...columns.at(-1).values.map((v) => v?.[VALUES.lateMs] ?? 0));
  }
  rows.forEach(([id, member], i) => {
    const top = ROW + i * row, gap = row >= 12 ? 2 : 0, full = row - 2 * gap;
    if (row >= 12) {
      pen.fillStyle = c.ink;
      pen.fillText(member.name ? `${brief(id, NAME_MOST.line)} ${id.slice(0, 4)}` : id, 0, top + row - 6, left - 8);
    }
    for (let k = 0, until; k < columns.length; k = until) { // columns that look alike are one bar
      const { values, latest } = columns[k], v = values[i];
      for (until = k + 1; until < columns.length && columns[until].values[i] === v && columns[until].latest === latest;) until++;
      if (!v) continue;
      const bar = (colour, from, to) => { pen.fillStyle = colour; pen.fillRect(first + k, top + gap + full * (1 - to), until - k, full * (to - from)); };
      if (v[VALUES.silent] >= SILENT_SECONDS) bar(c.silent, 0, 1);
      else if (v[VALUES.oldest] >= WAITS_SECONDS) bar(c.waits, 0, 1);
      else {
        const late = v.length ? waits(v, latest) : 0, busy = Math.min(1, Math.max(late, v[VALUES.busy] ?? 0));
        bar(c.idle, busy, 1);
        bar(c.late, busy - late, busy);
        bar(c.busy, 0, busy - late);
      }
    }
    for (const [from, to, event] of member.spans) {
      if (row < 6) continue;
      if (from > run.first) mark(from, "▲", c.good, top + row);
      if (to !== Infinity) mark(to, wasLost(event) ? "✕" : "▽", wasLost(event) ? c.silent : c.soft, top + row);
    }
    pen.fillStyle = c.waits;
    for (const one of run.findings)
      if (one.member === id && one.to > view.from && one.from < view.to) pen.fillRect(inside(one.from), top, Math.max(2, inside(Math.min(one.to, newest)) - inside(one.from)), 2);
  });
  pen.strokeStyle = c.soft;
  pen.lineWidth = 0.4;
  let written = -Infinity;
  for (const { at: time, epoch } of run.epochs) {
    if (time <= view.from || time >= view.to) continue;
    line(pen, x(time), height - AXIS);
    if (x(time) - written > 34) mark((written = x(time), time), String(epoch), c.soft, ROW);
  }
  pen.fillStyle = c.soft;
  const steps = [0.001, 0.01, 0.1, 1, 5, 15, 60, 300, 900, 3600, 21600, 86400];
  const step = steps.find((one) => (view.to - view.from) / one <= (width - left) / 90) ?? 86400;
  pen.textAlign = "center";
  for (let time = Math.ceil(view.from / step) * step; time < view.to; time += step)
    if (x(time) > left + 20 && x(time) < width - 24)
      pen.fillText(step < 1 ? `${clock(time)}${(time % 1).toFixed(3).slice(1)}` : step >= 86400 ? new Date(time * 1000).toLocaleDateString() : clock(time), x(time), height - 6);
  pen.textAlign = "left";
  if (view.at !== null && at >= view.from && at <= view.to) {
    pen.strokeStyle = c.ink;
    pen.lineWidth = 1.5;
    line(pen, x(at), height - AXIS);
  }
}

function line(pen, x, height) {
  pen.beginPath();
  pen.moveTo(x, 0);
  pen.lineTo(x, height);
  pen.stroke();
}

// ---- what the reader does ----

function zoom(factor, around = shownTime()) {
  const width = Math.min(Math.max((view.to - view.from) * factor, 0.01), 40 * 86400);
  const share = Math.min(1, Math.max(0, (around - view.from) / (view.to - view.from)));
  view.from = around - share * width;
  view.to = view.from + width;
  view.chosen = true;
  draw();
}

function move(share) {
  const by = share * (view.to - view.from);
  view.at ??= run.last;
  view.from += by;
  view.to += by;
  draw();
}

function showAll() {
  [view.from, view.to] = [run.first, Math.max(run.last, run.first + 1)];
  if (!run.live) view.at = null;
  view.chosen = true;
  draw();
}

const timeAt = (event) => {
  const box = $("line").getBoundingClientRect();
  return view.from + ((event.clientX - box.left - labels()) / (box.width - labels())) * (view.to - view.from);
};

function rowAt(event) { // the member whose row it is, for rows that are too low for names
  const { top, height, rows } = drawn, place = Math.floor((event.clientY - $("line").getBoundingClientRect().top - top) / height);
  return place in rows ? label(rows[place]) : "";
}

let drag = null;
$("line").addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event)); }, { passive: false });
$("line").addEventListener("pointerdown", (event) => {
  drag = { x: event.clientX, from: view.from, to: view.to, moved: false };
  $("line").setPointerCapture(event.pointerId);
});
$("line").addEventListener("pointermove", (event) => {
  if (!drag) { $("line").title = rowAt(event); return; }
  const by = ((drag.x - event.clientX) / ($("line").clientWidth - labels())) * (drag.to - drag.from);
  drag.moved ||= Math.abs(drag.x - event.clientX) > 3;
  if (!drag.moved) return;
  view.at ??= run.last;
  [view.from, view.to] = [drag.from + by, drag.to + by];
  draw();
});
$("line").addEventListener("pointerup", (event) => {
  if (drag && !drag.moved) view.at = Math.min(run.last, Math.max(run.first, timeAt(event)));
  drag = null;
  draw();
});
$("line").addEventListener("keydown", (event) => {
  const does = { ArrowLeft: () => move(-0.1), ArrowRight: () => move(0.1), "+": () => zoom(0.8), "-": () => zoom(1.25), Home: showAll, End: now }[event.key];
  if (does) { event.preventDefault(); does(); }
});
function now() {
  const width = view.to - view.from;
  view.at = null;
  [view.from, view.to] = [run.last - width, run.last];
  draw();
}
$("live").addEventListener("click", now);
$("in").addEventListener("click", () => zoom(0.5));
$("out").addEventListener("click", () => zoom(2));
$("all").addEventListener("click", showAll);
addEventListener("resize", draw);
setInterval(() => { // time passes although nothing happens
  if (!run.live || run.silent || run.ahead === undefined) return;
  run.last = Math.max(run.last, performance.now() / 1000 + run.ahead);
  if (view.at === null) draw();
}, 1000);

async function follow() {
  let next = 0, begun = false;
  for (;;) {
    try {
      const answer = await fetch(`events?after=${next}`, { signal: AbortSignal.timeout(1000 * PATIENCE_SECONDS) });
      if (!answer.ok) throw new Error(answer.status === 403 ? "Open the address that pccl prints now" : `${answer.status}`);
      const { log, next: number, live, acts, events } = await answer.json();
      if ((run.log ??= log) !== log) return location.reload(); // the server was restarted, and knows nothing of this history
      Object.assign(run, { live, acts, silent: false });
      for (const event of events)
        try { take(event); } catch (error) { console.error(error, event); } // of a damaged file
      if (events.length) run.ahead = run.last - performance.now() / 1000; // which never jumps
      const more = number > next;
      next = number;
      if (events.length && !begun) {
        begun = true;
        [view.from, view.to] = [run.last - LIVE_SECONDS[0], run.last];
      }
      if (!live && more) continue;
      if (!live) { showAll(); return; }
      draw();
    } catch (error) {
      run.silent = true; // what is shown is no news any more
      $("state").textContent = error.message.startsWith("Open") ? error.message : "This page's server does not answer";
      document.querySelector("header").className = "fails";
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
}
history.replaceState(null, "", location.pathname); // the tokens are in cookies now
follow();
