"use strict";

const byId = (id) => document.getElementById(id);
const GOOD = new Set(["healthy", "completed", "allowed"]);
const BAD = new Set(["failing", "failed", "abandoned", "denied"]);

async function ask(method, path, body) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  if (answer.status === 204) return null;
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.error.message), { status: answer.status });
  return content;
}

function show(problem) {
  byId("problem").hidden = !problem;
  byId("problem").textContent = problem ? problem.message : "";
}

// Everything that is shown is text: names and reasons come from servers that nobody vouches for.
function cell(value) {
  const element = document.createElement("td");
  const text = value === null || value === undefined ? "" : Array.isArray(value) ? value.join(", ") : String(value);
  element.textContent = text;
  if (GOOD.has(text)) element.className = "good";
  if (BAD.has(text)) element.className = "bad";
  return element;
}

function head(table, columns) {
  const row = document.createElement("tr");
  for (const column of columns) {
    const element = document.createElement("th");
    element.textContent = column.replaceAll("_", " ");
    row.append(element);
  }
  table.tHead.replaceChildren(row);
}

function valueOf(item, column) {
  if (column !== "failure") return item[column];
  const failure = item.last_failure;
  return item.health === "failing" && failure ? `${failure.stage}: ${failure.message}` : null;
}

function tableOf(section, columns) {
  const table = document.createElement("table");
  table.createTHead();
  table.createTBody();
  head(table, section.dataset.explain ? [...columns, ""] : columns);
  section.append(table);
  return table;
}

async function fill(section) {
  const columns = section.dataset.columns.split(",");
  for (const old of section.querySelectorAll("table, button")) old.remove();
  const table = tableOf(section, columns);
  const more = document.createElement("button");
  more.textContent = "More";
  let cursor = null;
  const next = async () => {
    const query = cursor === null ? "?limit=20" : `?limit=20&cursor=${encodeURIComponent(cursor)}`;
    const page = await ask("GET", section.dataset.path + query);
    for (const item of page.items) {
      const row = table.tBodies[0].insertRow();
      row.append(...columns.map((column) => cell(valueOf(item, column))));
      if (section.dataset.explain) row.append(explainButton(item));
    }
    cursor = page.next_cursor;
    more.hidden = cursor === null;
  };
  more.addEventListener("click", () => next().catch(failed));
  section.append(more);
  await next();
}

function explainButton(key) {
  const element = document.createElement("td");
  const button = document.createElement("button");
  button.textContent = "Tools";
  button.addEventListener("click", () => explain(key).catch(failed));
  element.append(button);
  return element;
}

async function explain(key) {
  const columns = ["tool", "decision", "level", "reason"];
  const answer = await ask("GET", `/api/v1/explain?key=${encodeURIComponent(key.id)}`);
  const table = byId("access").querySelector("table");
  head(table, columns);
  table.tBodies[0].replaceChildren();
  for (const tool of answer.tools) table.tBodies[0].insertRow().append(...columns.map((column) => cell(tool[column])));
  byId("whom").textContent = key.name;
  byId("access").hidden = false;
}

function failed(problem) {
  if (problem.status === 401) return loggedOut(null);
  show(problem);
}

function loggedOut(problem) {
  byId("login").hidden = false;
  byId("lists").hidden = byId("session").hidden = true;
  show(problem);
}

async function start() {
  const session = await ask("GET", "/api/v1/console/session");
  byId("until").textContent = new Date(session.expires_at).toLocaleString();
  byId("login").hidden = true;
  byId("lists").hidden = byId("session").hidden = false;
  show(null);
  for (const section of document.querySelectorAll("section[data-path]")) await fill(section);
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = byId("token").value;
  byId("token").value = "";
  ask("POST", "/api/v1/console/session", { admin_token: token }).then(start).catch((problem) => {
    const message = "This admin token is not the one of this installation.";
    loggedOut(problem.status === 401 ? Object.assign(problem, { message }) : problem);
  });
});
byId("leave").addEventListener("click", () => {
  ask("DELETE", "/api/v1/console/session").then(() => loggedOut(null)).catch(failed);
});
start().catch(failed);
