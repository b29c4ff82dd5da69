// Validates manifests against published schemas, and queries against the grammar of PromQL. `manifests.py` runs this
// script.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parser } from "@prometheus-io/lezer-promql";
import { parseAllDocuments } from "yaml";

const folder = process.argv[2];
let faults = 0;

function fault(text) {
  faults += 1;
  console.log("fault:", text);
}

// npm packages with the schemas of API groups. The first has the groups of Kubernetes.
const PACKAGES = [
  [/^(v1|apps\/|policy\/|networking\.k8s\.io\/)/, "kubernetes-models"],
  [/^gateway\.networking\.k8s\.io\//, "@kubernetes-models/gateway-api"],
  [/^monitoring\.coreos\.com\//, "@kubernetes-models/prometheus-operator"],
  [/^keda\.sh\//, "@kubernetes-models/keda"],
];

/** Returns the class that validates a kind of object, or null if no package has one. */
async function model({ apiVersion, kind }) {
  const [, name] = PACKAGES.find(([group]) => group.test(apiVersion)) ?? [];
  return name ? (await import(`${name}/${apiVersion}/${kind}`))[kind] : null;
}

/** Returns the positions of syntax errors in a query. */
function broken(query) {
  // Grafana substitutes this variable.
  const text = query.replaceAll("$__rate_interval", "5m");
  const places = [];
  parser.parse(text).iterate({ enter: (node) => void (node.type.isError && places.push(node.from)) });
  return places;
}

/** Yields all strings with one of these keys, at any depth. */
function* under(names, value, name = "") {
  if (typeof value === "string" && names.includes(name)) yield value;
  if (value && typeof value === "object") {
    for (const [inner, child] of Object.entries(value)) yield* under(names, child, inner);
  }
}

async function checkManifest(file, object) {
  const what = `${file}: ${object.apiVersion} ${object.kind}`;
  const Model = await model(object);
  if (Model) {
    try {
      new Model(object).validate();
      console.log("valid:", what);
    } catch (error) {
      fault(`${what}: ${error.message}`);
    }
  } else {
    console.log("no published schema, not validated:", what);
  }
}

function checkQueries(file, queries) {
  for (const query of queries) {
    const places = broken(query);
    if (places.length) fault(`${file}: syntax errors at ${places}: ${query}`);
  }
  console.log("valid:", queries.length, "queries of", file);
}

for (const file of readdirSync(join(folder, "kubernetes")).sort()) {
  for (const document of parseAllDocuments(readFileSync(join(folder, "kubernetes", file), "utf8"))) {
    document.errors.forEach((error) => fault(`${file}: ${error.message}`));
    const object = document.toJS();
    await checkManifest(file, object);
    const queries = [...under(["expr", "query"], object)];
    if (queries.length) checkQueries(file, queries);
  }
}
const dashboard = JSON.parse(readFileSync(join(folder, "grafana", "llama.json"), "utf8"));
checkQueries("grafana/llama.json", [...under(["expr"], dashboard)]);
// The validators must reject invalid input.
if (!broken("sum(rate(a[5m])").length) fault("an invalid query was accepted");
const invalid = { apiVersion: "apps/v1", kind: "Deployment", spec: { replicas: "two" } };
const Deployment = await model(invalid);
try {
  new Deployment(invalid).validate();
  fault("an invalid manifest was accepted");
} catch {}
process.exit(faults ? 1 : 0);
