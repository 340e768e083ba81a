// The steward's page. It reads `/v1/events` (with fetch, so that a token can be sent), and draws what it is told.
//
//   connecting ──▶ live ◀──▶ lost (says since when; tries again after growing pauses)
//       └────────▶ refused (asks for a token)
//
// All text from the index is put in as text, never as HTML: names of samples, hosts and roles are what others wrote.
"use strict";

const STATES = [
  ["reserved", "being written"],
  ["live", "committed; groups need it"],
  ["retired", "out of circulation; a consumer still reads it"],
  ["to-free", "its bytes are to be removed"],
  ["lost", "its bytes are gone from the engine"],
  ["dead", "dead letter: a group ran out of attempts"],
];
const ROWS = 50; // sessions on one page
const MOST_POINTS = 1000;
const SILENT_MS = 15000; // the steward says something every 5 s
const SESSIONS_EVERY_MS = 10000;

const $ = (id) => document.getElementById(id);
let token = sessionStorage.getItem("tensorhold-token");
let overview = null;
let chosen = null; // the name of the store that is shown
let skew = 0; // the steward's clock minus this one
let lostSince = null;

// ---- making elements

function el(name, text, classes) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = String(text);
  if (classes) made.className = classes;
  return made;
}

function svg(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Cells are texts, or elements; the class "n" is for numbers. The first cell is the head of its row.
function rows(table, lines, none) {
  const body = table.querySelector("tbody");
  const columns = table.querySelectorAll("thead th");
  if (lines.length === 0) {
    const cell = el("td", none, "none");
    cell.colSpan = Math.max(columns.length, 1);
    cell.setAttribute("role", "cell");
    const row = el("tr");
    row.setAttribute("role", "row");
    row.append(cell);
    body.replaceChildren(row);
    return;
  }
  body.replaceChildren(...lines.map((cells) => {
    const row = el("tr");
    row.setAttribute("role", "row");
    row.append(...cells.map((content, at) => {
      const cell = at === 0 ? el("th") : el("td");
      if (at === 0) cell.scope = "row";
      if (columns[at] && columns[at].classList.contains("n")) cell.className = "n";
      cell.setAttribute("role", at === 0 ? "rowheader" : "cell");
      // Where there is no room for columns, each cell says which it is.
      if (columns[at]) cell.dataset.label = columns[at].textContent;
      cell.append(content instanceof Node ? content : String(content ?? ""));
      return cell;
    }));
    return row;
  }));
}

function caption(table, text) {
  const at = table.querySelector("caption");
  if (at.textContent !== text) at.textContent = text;
}

function bar(used, of) {
  const part = of > 0 ? Math.min(used / of, 1) : 0;
  const drawn = svg("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  drawn.append(svg("rect", { class: "track", width: 100, height: 10 }), svg("rect", { class: "used", width: 100 * part, height: 10 }));
  const both = el("div", percent(used, of));
  both.append(drawn);
  return both;
}

// ---- words for figures

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  let value = count;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${at === 0 ? value : value.toFixed(value < 10 ? 2 : 1)} ${units[at]}`;
}

const count = (value) => (value === null || value === undefined ? "unknown" : value.toLocaleString("en"));
const percent = (used, of) => (of > 0 ? `${(100 * used / of).toFixed(1)} %` : "–");

function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

function ago(ms) {
  // Other processes write these times, and not every number is one.
  if (!ms || Number.isNaN(new Date(ms).getTime())) return "unknown";
  const time = el("time", `${span((Date.now() + skew - ms) / 1000)} ago`);
  time.dateTime = new Date(ms).toISOString();
  time.title = new Date(ms).toLocaleString();
  return time;
}

// How fast a figure changes; nothing if that is not known yet.
function change(perSecond, unit) {
  if (perSecond === null || perSecond === undefined) return "–";
  const size = Math.abs(perSecond);
  const sign = perSecond < 0 ? "−" : "+";
  if (unit === "bytes") return size < 1 ? "±0" : `${sign}${bytes(Math.round(size))}/s`;
  return size < 0.005 ? "±0" : `${sign}${size.toLocaleString("en", { maximumFractionDigits: size < 10 ? 2 : 0 })}/s`;
}

function who(process) {
  if (!process.alive) return `session ${process.session} (not alive, or not known)`;
  const name = [process.role, process.program].filter((text) => text).join(", ") || "unnamed";
  return `${name} on ${process.host || "?"}, process ${process.pid}`;
}

function held(store) {
  const known = store.states.filter((state) => state.state !== "lost");
  const sum = known.reduce((sum, state) => sum + state.bytes, 0);
  return (known.every((state) => state.exact) ? "" : "≈ ") + bytes(sum);
}

// ---- the state of the connection

function say(state, text) {
  const at = $("state");
  // Only what changes is said, or a screen reader would chatter.
  if (at.dataset.state !== state) at.dataset.state = state;
  if (at.textContent !== text) at.textContent = text;
  document.body.classList.toggle("old", state === "lost");
}

function lost(why) {
  if (lostSince === null) lostSince = new Date();
  const since = lostSince.toLocaleTimeString();
  const old = overview ? " The figures below are old." : "";
  say("lost", `Connection lost at ${since}: ${why}. Trying again.${old}`);
}

function refused(why) {
  say("refused", token ? "The steward refuses the token" : "A token is needed");
  $("ask-why").textContent = why;
  $("ask").hidden = false;
  $("figures").hidden = true;
  $("token").focus();
}

async function ask(path, signal) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, signal, cache: "no-store", credentials: "omit", redirect: "error" });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  const error = new Error(said.why ? `${said.why}; ${said.do}` : `status ${answer.status}`);
  error.refused = answer.status === 401 || answer.status === 403;
  throw error;
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
let given = () => {}; // a token was given
let following = null; // ends the stream that is read now

// A page that nobody sees asks for nothing: the steward looks less often while nobody watches.
const seen = () => new Promise((done) => {
  if (!document.hidden) return done();
  document.addEventListener("visibilitychange", () => done(), { once: true });
});
document.addEventListener("visibilitychange", () => { if (document.hidden && following) following.abort("hidden"); });

async function follow() {
  let failures = 0;
  for (;;) {
    await seen();
    const abort = new AbortController();
    following = abort;
    let silent = setTimeout(() => abort.abort(), SILENT_MS);
    try {
      const answer = await ask("/v1/events", abort.signal);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break; // A stream ends after half a minute, and the next one begins at once.
        clearTimeout(silent);
        silent = setTimeout(() => abort.abort(), SILENT_MS);
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        events.forEach(take);
        failures = 0;
      }
    } catch (error) {
      if (error.refused) {
        await new Promise((done) => { given = done; refused(error.message); });
        continue;
      }
      if (abort.signal.reason === "hidden") continue;
      failures += 1;
      lost(error.name === "AbortError" ? "the steward is silent" : error.message);
    } finally {
      clearTimeout(silent);
      abort.abort();
    }
    await pause(Math.min(10000, failures === 0 ? 0 : 250 * 2 ** failures));
  }
}

function take(event) {
  const line = (name) => event.split("\n").find((one) => one.startsWith(`${name}: `))?.slice(name.length + 2);
  const [name, data] = [line("event"), line("data")];
  if (name === "hello") skew = JSON.parse(data).now_ms - Date.now();
  if (name !== "overview") return;
  overview = JSON.parse(data);
  lostSince = null;
  say("live", "Live");
  draw();
}

// ---- drawing

function draw() {
  const names = overview.stores.map((store) => store.store);
  if (!names.includes(chosen)) chosen = names[0] ?? null;
  $("ask").hidden = true;
  $("figures").hidden = false;
  $("forget").hidden = !token;
  const about = `Release ${overview.version}${overview.read_only ? ", changes nothing (read only)" : ""}` +
    (overview.whole ? "" : "; a part of it has ended by a defect: start it again");
  if ($("about").textContent !== about) $("about").textContent = about;
  $("look-every").textContent = span(overview.look_every_ms / 1000);
  drawAttention();
  drawStores();
  const store = overview.stores.find((one) => one.store === chosen);
  if (store) drawStore(store);
}

function drawAttention() {
  const list = $("attention").querySelector("ul");
  const all = overview.attention;
  $("attention").hidden = all.length === 0;
  const said = JSON.stringify(all);
  if (list.dataset.said === said) return;
  list.dataset.said = said;
  list.replaceChildren(...all.map((one) => {
    const item = el("li");
    item.append(el("span", one.level, one.level === "critical" ? "full" : "high"), ` ${one.store === null ? "" : `store ${one.store}: `}${one.what} `, el("code", one.runbook));
    return item;
  }));
}

const storeRows = new Map();

// In place: a button that has the focus must stay.
function drawStores() {
  const body = $("stores").querySelector("tbody");
  for (const [name, row] of storeRows) {
    if (!overview.stores.some((store) => store.store === name)) { row.remove(); storeRows.delete(name); }
  }
  for (const store of overview.stores) {
    let row = storeRows.get(store.store);
    if (!row) {
      row = el("tr");
      row.setAttribute("role", "row");
      const head = el("th");
      head.scope = "row";
      head.setAttribute("role", "rowheader");
      const button = el("button", store.store, "name");
      button.type = "button";
      button.addEventListener("click", () => choose(store.store));
      head.append(button);
      row.append(head, ...Array.from({ length: 8 }, (_, at) => el("td", "", [2, 3, 5, 6, 7].includes(at) ? "n" : "")));
      const columns = $("stores").querySelectorAll("thead th");
      [...row.children].slice(1).forEach((cell, at) => { cell.setAttribute("role", "cell"); cell.dataset.label = columns[at + 1].textContent; });
      storeRows.set(store.store, row);
      body.append(row);
    }
    const is = store.store === chosen;
    row.toggleAttribute("aria-current", is);
    if (is) row.setAttribute("aria-current", "true");
    row.querySelector("button").setAttribute("aria-pressed", String(is));
    const of = (name) => store.states.find((state) => state.state === name)?.samples ?? 0;
    const sweeper = store.on_duty ? "this steward" : store.steward ? `the steward on ${store.steward.host}`
      : store.sweepers.length > 0 ? "its own processes" : "nobody";
    const state = store.idle ? "idle: nobody uses it" : !store.open ? `not open: ${store.trouble ?? "not tried yet"}` : store.trouble ? `trouble: ${store.trouble}` : "open";
    const budget = store.budget ? `${bytes(store.budget.bytes - store.budget.free)} of ${bytes(store.budget.bytes)}` : "no budget";
    const cells = [state, sweeper, count(of("live")), held(store), budget, count(store.budget?.waiting ?? 0), count(of("dead")), count(store.sessions)];
    cells.forEach((text, at) => { row.children[at + 1].textContent = text; });
    row.children[1].className = (store.open || store.idle) && !store.trouble ? "" : "full";
  }
}

function choose(name) {
  if (name === chosen) return;
  chosen = name;
  past = { of: null, columns: [], points: [] };
  sessions = { of: null, all: [], at: 0 };
  draw();
  drawChart();
  if ($("sessions").open) readSessions();
}

function drawStore(store) {
  const title = `Store ${store.store}`;
  if ($("store-title").textContent !== title) $("store-title").textContent = title;
  const note = $("store-note");
  const looked = store.looked_ms ? [`Looked at `, ago(store.looked_ms), `; it took ${store.took_ms} ms.`] : ["It was not looked at yet."];
  const trouble = store.look_trouble.length > 0 ? ` Not read, and as it was before: ${store.look_trouble.join("; ")}.` : "";
  note.replaceChildren(...looked, trouble);

  const limits = [...store.pressure, ...(overview.etcd?.pressure ?? [])];
  const over = store.change_over_s === null ? "A change is known after two looks." : `Change: the difference within the last ${span(store.change_over_s)}, in a second.`;
  rows($("pressure"), limits.map((one) => [one.what, bytes(one.used), bytes(one.of), bar(one.used, one.of), el("span", one.level, one.level)]),
    "Nothing that is limited is known: the store has no budget, and the engine did not answer.");

  rows($("states"), STATES.map(([name, meaning]) => {
    const state = store.states.find((one) => one.state === name) ?? { samples: 0, bytes: 0, exact: true };
    const changes = el("span", change(state.samples_per_s));
    if (Math.abs(state.bytes_per_s ?? 0) >= 1) changes.append(el("br"), change(state.bytes_per_s, "bytes"));
    return [name, count(state.samples), changes, (state.exact ? "" : "≈ ") + bytes(state.bytes), meaning];
  }), "");
  caption($("states"), `Samples are counted. Bytes with ≈ are the mean of the records read, times the count. ${over}`);

  caption($("leases"), store.leases_complete ? `The ${count(store.leases.length)} oldest leases, of all that are held now.`
    : "There are very many leases: these are the oldest of those whose time ends first.");
  rows($("leases"), store.leases.map((lease) => [
    lease.sample, lease.group === null ? "a reader" : `group ${lease.group}`, ago(lease.since_ms),
    lease.ends_in_s === null ? "unknown" : lease.ends_in_s === 0 ? "over: the next sweep takes it back" : span(lease.ends_in_s),
    lease.attempts || "–", bytes(lease.bytes), who(lease.held_by),
  ]), "No sample is leased.");

  const waiting = store.budget?.first ?? [];
  caption($("waiting"), store.budget ? `Producers that wait for room in the budget: ${count(store.budget.waiting)}, the longest first. Consumers that wait for samples are not known to the index.`
    : "The store has no budget, so no producer waits for it. Consumers that wait for samples are not known to the index.");
  rows($("waiting"), waiting.map((one) => [who(one.who), bytes(one.wants)]), "Nobody waits.");

  const live = store.states.find((one) => one.state === "live")?.samples ?? 0;
  const among = store.groups_of >= live ? "" : ` Leased: among ${count(store.groups_of)} of ${count(live)} live samples, those read at this look.`;
  caption($("groups"), `The oldest sample that waits, by its commit. ${over}${among}`);
  rows($("groups"), store.groups.map((one) => [one.group, count(one.waiting), change(one.waiting_per_s), one.waiting === 0 ? "–" : ago(one.oldest_ms), count(one.leased)]), "Nothing waits for a group.");

  const dead = store.states.find((one) => one.state === "dead")?.samples ?? 0;
  caption($("dead"), dead > store.dead.length ? `${count(dead)} in all; the first ${count(store.dead.length)}. \`tensorhold dead\` shows, requeues and drops them.`
    : `${count(dead)} in all. \`tensorhold dead\` shows, requeues and drops them.`);
  rows($("dead"), store.dead.map((one) => [one.sample, one.groups.join(", "), one.attempts, ago(one.since_ms), bytes(one.bytes), who(one.producer)]),
    "There are none.");

  const back = store.taken_back;
  caption($("actions"), `Since it started, this steward took back ${count(back.leases)} leases and ${count(back.reservations)} reservations, cleared ${count(back.sessions)} sessions, and freed ${count(store.freed)} samples that others had left (${count(store.failed_frees)} frees failed and were tried again). What processes retire they free themselves, and that is not among these. The latest first.`);
  rows($("actions"), store.actions.map((one) => [ago(one.at_ms), one.what, one.why]), "Nothing yet.");

  const engine = store.engine;
  const suspected = store.suspected > 0 ? ` ${count(store.suspected)} samples miss an object: they are lost, or come back.` : "";
  caption($("holders"), (engine ? `${count(engine.holders)} in the engine, with ${count(engine.objects)} objects of all stores.` : "The engine did not tell.") + suspected);
  const missing = store.missing_holders.map((one) => [one.name, el("span", "full", "missing"), "", ago(one.since_ms)]);
  rows($("holders"), missing.concat(store.holders.map((one) => [one.name, bytes(one.dram_used), bytes(one.dram_capacity), bar(one.dram_used, one.dram_capacity)])),
    overview.etcd === null ? "Each holder is shown to tokens for all stores." : "None is known.");

  const sessionsTitle = `Sessions (${count(store.sessions)})`;
  if ($("sessions-title").textContent !== sessionsTitle) $("sessions-title").textContent = sessionsTitle;
  if (store.point_ms !== null) readHistory(store.point_ms);
}

// ---- bytes over time

let past = { of: null, columns: [], points: [] };
let readingHistory = false;

async function readHistory(latest) {
  const last = past.points.at(-1)?.[0] ?? 0;
  if (readingHistory || (past.of === chosen && last >= latest)) return;
  readingHistory = true;
  const store = chosen;
  try {
    const answer = await ask(`/v1/stores/${encodeURIComponent(store)}/history?after=${past.of === store ? last : 0}`);
    const read = await answer.json();
    if (store !== chosen) return;
    const before = past.of === store ? past.points : [];
    past = { of: store, columns: read.columns, points: [...before, ...read.points].slice(-MOST_POINTS) };
    drawChart();
  } catch (error) {
    $("time-note").textContent = `The history could not be read: ${error.message}`;
  } finally {
    readingHistory = false;
  }
}

function drawChart() {
  const points = past.points;
  if (points.length < 2) {
    $("time-note").textContent = "There are figures over time after two looks. They begin with the steward, and are not kept on disk.";
    $("chart").replaceChildren();
    $("legend").replaceChildren();
    drawPoints();
    return;
  }
  // As wide as there is room, so that its text is as large as other text.
  const [width, height, left, bottom] = [Math.max(280, $("chart").clientWidth || 900), 220, 70, 22];
  const marks = width < 600 ? 2 : 4;
  const [from, to] = [points[0][0], points.at(-1)[0]];
  const most = Math.max(1, ...points.map((point) => Math.max(...point.slice(1, 7))));
  const top = niceTop(most);
  const x = (ms) => left + (width - left - 8) * (ms - from) / Math.max(1, to - from);
  const y = (value) => 8 + (height - bottom - 8) * (1 - value / top);
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (let step = 0; step <= 4; step += 1) {
    const value = top * step / 4;
    const label = svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" });
    label.textContent = bytes(value);
    drawn.append(svg("line", { class: "grid", x1: left, x2: width - 8, y1: y(value), y2: y(value) }), label);
  }
  for (let step = 0; step <= marks; step += 1) {
    const ms = from + (to - from) * step / marks;
    const label = svg("text", { x: x(ms), y: height - 6, "text-anchor": step === 0 ? "start" : step === marks ? "end" : "middle" });
    label.textContent = new Date(ms).toLocaleTimeString();
    drawn.append(label);
  }
  const said = [];
  const keys = [];
  STATES.forEach(([name], at) => {
    const values = points.map((point) => point[at + 1]);
    const now = values.at(-1);
    if (values.some((value) => value > 0)) {
      const path = points.map((point, n) => `${n === 0 ? "M" : "L"}${x(point[0]).toFixed(1)} ${y(point[at + 1]).toFixed(1)}`).join("");
      drawn.append(svg("path", { class: `line s${at}`, d: path }));
    }
    said.push(`${name} ${bytes(now)}, at most ${bytes(Math.max(...values))}`);
    const key = svg("svg", { viewBox: "0 0 36 10", "aria-hidden": "true" });
    key.append(svg("path", { class: `line s${at}`, d: "M1 5H35" }));
    const item = el("li");
    item.append(key, `${name}: ${bytes(now)}`);
    keys.push(item);
  });
  drawn.setAttribute("aria-label", `Bytes by state from ${new Date(from).toLocaleTimeString()} to ${new Date(to).toLocaleTimeString()}. Now: ${said.join("; ")}.`);
  $("chart").replaceChildren(drawn);
  $("legend").replaceChildren(...keys);
  $("time-note").textContent = `Since ${new Date(from).toLocaleString()}, one point per look (every ${span(overview.look_every_ms / 1000)}); what is old is thinned out. It begins with the steward, and is not kept on disk.`;
  drawPoints();
}

function niceTop(most) {
  let top = 1024;
  while (top < most) top *= 2;
  return top;
}

function drawPoints() {
  if (!$("points").open) return;
  const table = $("points").querySelector("table");
  const head = el("tr");
  const names = ["Time", ...STATES.map(([name]) => name), "Samples"];
  head.setAttribute("role", "row");
  head.append(...names.map((name, at) => {
    const cell = el("th", name, at > 0 ? "n" : "");
    cell.scope = "col";
    cell.setAttribute("role", "columnheader");
    return cell;
  }));
  table.querySelector("thead").replaceChildren(head);
  const latest = past.points.slice(-60).reverse();
  rows(table, latest.map((point) => [new Date(point[0]).toLocaleTimeString(), ...point.slice(1, 7).map(bytes), count(point.slice(7, 13).reduce((a, b) => a + b, 0))]),
    "No points yet.");
}

// ---- sessions

let sessions = { of: null, all: [], at: 0 };
let sorting = { key: "started_ms", down: true };
let readingSessions = false;

async function readSessions() {
  if (readingSessions || !chosen || !$("sessions").open) return;
  readingSessions = true;
  const store = chosen;
  try {
    const all = [];
    for (let after = ""; after !== null;) {
      const query = after ? `?after=${encodeURIComponent(after)}` : "";
      const part = await (await ask(`/v1/stores/${encodeURIComponent(store)}/sessions${query}`)).json();
      all.push(...part.sessions);
      after = part.next;
    }
    if (store !== chosen) return;
    sessions = { of: store, all, at: sessions.of === store ? sessions.at : 0 };
    drawSessions();
  } catch (error) {
    $("sessions-shown").textContent = `The sessions could not be read: ${error.message}`;
  } finally {
    readingSessions = false;
  }
}

function drawSessions() {
  const wanted = $("filter").value.trim().toLowerCase();
  const has = (one) => [one.program, one.role, one.host, String(one.pid), one.version, one.session].some((text) => text.toLowerCase().includes(wanted));
  const found = sessions.all.filter((one) => !wanted || has(one));
  const { key, down } = sorting;
  const compare = (a, b) => (typeof a[key] === "number" ? a[key] - b[key] : a[key].localeCompare(b[key])) || a.session.localeCompare(b.session);
  found.sort((a, b) => (down ? -compare(a, b) : compare(a, b)));
  const pages = Math.max(1, Math.ceil(found.length / ROWS));
  sessions.at = Math.min(sessions.at, pages - 1);
  const from = sessions.at * ROWS;
  const shown = found.slice(from, from + ROWS);
  rows($("sessions").querySelector("table"), shown.map((one) => [
    one.program + (one.steward ? " (a steward)" : ""), one.role, one.host, one.pid, ago(one.started_ms), one.version, one.session,
  ]), wanted ? "No session contains that." : "No process has the store open.");
  const text = found.length === 0 ? "None" : `${count(from + 1)} to ${count(from + shown.length)} of ${count(found.length)}`;
  if ($("sessions-shown").textContent !== text) $("sessions-shown").textContent = text;
  $("page-at").textContent = `Page ${sessions.at + 1} of ${pages}`;
  $("page-before").disabled = sessions.at === 0;
  $("page-after").disabled = sessions.at >= pages - 1;
}

function turn(by) {
  sessions.at += by;
  drawSessions();
  // A button that was switched off has lost the focus.
  const [pressed, other] = by < 0 ? ["page-before", "page-after"] : ["page-after", "page-before"];
  if ($(pressed).disabled) $(other).focus();
}

for (const button of document.querySelectorAll("#sessions th button")) {
  button.addEventListener("click", () => {
    const key = button.dataset.key;
    sorting = { key, down: sorting.key === key ? !sorting.down : false };
    for (const head of document.querySelectorAll("#sessions th[aria-sort]")) {
      const is = head.contains(button);
      head.setAttribute("aria-sort", is ? (sorting.down ? "descending" : "ascending") : "none");
    }
    sessions.at = 0;
    drawSessions();
  });
}
$("filter").addEventListener("input", () => { sessions.at = 0; drawSessions(); });
$("page-before").addEventListener("click", () => turn(-1));
$("page-after").addEventListener("click", () => turn(1));
$("sessions").addEventListener("toggle", readSessions);
$("points").addEventListener("toggle", drawPoints);
setInterval(() => { if (!document.hidden) readSessions(); }, SESSIONS_EVERY_MS);

addEventListener("resize", drawChart);

// A table that is drawn as cards is one to a screen reader still.
for (const [name, role] of [["table", "table"], ["thead, tbody", "rowgroup"], ["tr", "row"], ["thead th", "columnheader"]]) {
  for (const part of document.querySelectorAll(name)) part.setAttribute("role", role);
}

// ---- the token

$("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  $("token").value = "";
  sessionStorage.setItem("tensorhold-token", token);
  say("connecting", "Connecting…");
  given();
});
$("forget").addEventListener("click", () => {
  token = null;
  overview = null;
  sessionStorage.removeItem("tensorhold-token");
  $("forget").hidden = true;
  following?.abort();
});

follow();
