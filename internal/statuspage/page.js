"use strict";
(() => {
  const root = document.documentElement;
  const live = document.getElementById("live");
  const told = live.firstElementChild;
  const since = document.getElementById("seen");
  const quiet = 15000; // ms without an event after which the connection counts as lost: the daemon sends one every 5 s

  let tag = root.dataset.tag;
  let skew = Date.now() - Date.parse(root.dataset.now); // how far the browser's clock is ahead of the node's
  let seen = Date.now(); // the last event
  let lost = false;
  let stream = null;
  let timer = 0;
  let life = 0; // of the stream; events of an earlier stream do not count
  let work = Promise.resolve(); // one page is fetched at a time

  // ago formats a duration as the server does.
  function ago(ms) {
    const s = Math.max(0, Math.floor(ms / 1000));
    const two = (n) => String(n).padStart(2, "0");
    if (s < 60) return s + "s";
    if (s < 3600) return Math.floor(s / 60) + "m" + two(s % 60) + "s";
    if (s < 86400) return Math.floor(s / 3600) + "h" + two(Math.floor(s / 60) % 60) + "m";
    return Math.floor(s / 86400) + "d" + two(Math.floor(s / 3600) % 24) + "h";
  }

  function tick(within) {
    for (const t of within.querySelectorAll("time[data-ago]")) {
      const text = ago(Date.now() - skew - Date.parse(t.dateTime));
      if (t.textContent !== text) t.textContent = text;
    }
  }

  // say shows the state of the connection: in words that a screen reader reads once, and next to them in figures that it skips.
  function say() {
    const words = lost ? "Connection lost" : "Live";
    if (told.textContent !== words) told.textContent = words;
    since.textContent = lost ? ", last seen " + ago(Date.now() - seen) + " ago; trying again" : "";
    live.className = lost ? "live lost" : "live";
    live.hidden = false;
  }

  function alive() {
    seen = Date.now();
    lost = false;
    say();
  }

  // change makes the old node equal to the new one, and touches only the differences. Nodes are the same if they have the same
  // name and id. The script owns elements with data-own.
  function change(old, now) {
    if (old.isEqualNode(now)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== now.data) old.data = now.data;
      return;
    }
    if (old.nodeName === "SCRIPT" || old.nodeName === "NOSCRIPT" || "own" in old.dataset) return;
    for (const a of [...old.attributes]) if (!now.hasAttribute(a.name)) old.removeAttribute(a.name);
    for (const a of now.attributes) if (old.getAttribute(a.name) !== a.value) old.setAttribute(a.name, a.value);

    const keep = new Set();
    for (const n of now.childNodes) if (n.id) keep.add(n.id);
    const byId = new Map();
    for (const o of [...old.childNodes]) {
      if (!o.id) continue;
      if (keep.has(o.id)) byId.set(o.id, o);
      else o.remove();
    }
    let at = old.firstChild;
    for (const n of now.childNodes) {
      const same = n.id ? byId.get(n.id) : at && !at.id && at.nodeName === n.nodeName ? at : null;
      if (!same || same.nodeName !== n.nodeName) {
        old.insertBefore(document.importNode(n, true), at);
        continue;
      }
      if (same === at) at = at.nextSibling;
      else old.insertBefore(same, at);
      change(same, n);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function show(next) {
    if (next.documentElement.dataset.build !== root.dataset.build) {
      location.reload(); // another devmgrd, whose page has another script
      return;
    }
    for (const d of document.querySelectorAll("details[open]")) {
      const same = next.getElementById(d.id);
      if (same) same.open = true;
    }
    skew = Date.now() - Date.parse(next.documentElement.dataset.now);
    tick(next);
    const active = document.activeElement;
    const home = active && active.closest("section");
    change(document.body, next.body);
    if (active && !active.isConnected && home && home.isConnected) home.focus({ preventScroll: true });
    document.title = next.title;
    tag = next.documentElement.dataset.tag;
  }

  async function load(wanted) {
    if (wanted && wanted === tag) return;
    const answer = await fetch("./", { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(answer.statusText);
    const html = await answer.text();
    alive();
    show(new DOMParser().parseFromString(html, "text/html"));
  }

  // refresh replaces the page with the one of the tag, or with the newest.
  function refresh(wanted) {
    const mine = work.then(() => load(wanted));
    work = mine.catch(() => {});
    return mine;
  }

  function stop() {
    life++;
    clearTimeout(timer);
    if (stream) stream.close();
    stream = null;
  }

  function listen() {
    stop();
    let heard = false;
    const mine = life;
    stream = new EventSource("events");
    stream.onmessage = (e) => {
      heard = true;
      alive();
      refresh(e.data).catch(() => { if (mine === life) later(0); });
    };
    stream.onerror = () => later(heard ? 0 : 5000); // without a stream the page is fetched every 5 s
  }

  function later(pause) {
    stop();
    timer = setTimeout(begin, pause);
  }

  async function begin() {
    const mine = life;
    try {
      await refresh();
      if (mine === life) listen();
    } catch {
      if (mine !== life) return;
      lost = true;
      say();
      later(2000);
    }
  }

  setInterval(() => {
    tick(document);
    if (lost) say();
    else if (stream && Date.now() - seen > quiet) later(0);
  }, 1000);

  // A hidden page costs nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stop();
    else later(0);
  });
  // A link leads to a device's cell: its details open.
  document.addEventListener("click", (e) => {
    const a = e.target.closest('a[href^="#d"]');
    const d = a && document.getElementById(a.hash.slice(1) + "-more");
    if (d) d.open = true;
  });

  tick(document);
  if (!document.hidden) listen();
})();
