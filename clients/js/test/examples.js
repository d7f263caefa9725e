/** The examples of the README and of the documentation work as they are printed. */
import assert from "node:assert/strict";
import {execFile} from "node:child_process";
import {mkdir, mkdtemp, readFile, rm, symlink, writeFile} from "node:fs/promises";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {test} from "node:test";
import {fileURLToPath} from "node:url";
import {promisify} from "node:util";
import {Client} from "../src/index.js";
import {service} from "./running.js";

const PACKAGE = fileURLToPath(new URL("..", import.meta.url));
const PAGE = "../../docs/client-js.md";
const ADDRESS = /http:\/\/127\.0\.0\.1:8000\/\w+\/0\.1/;
/** a word that each example prints, in order */
const PRINTS = {
  "README.md": ["Your name is Ada."],
  [PAGE]: ["Your name is Ada.", "6 7 8", "final-response", "older.txt is deleted", "assistant", "not_found"],
};

for (const [page, prints] of Object.entries(PRINTS)) {
  test(`the examples of ${page} print what they are about`, async () => {
    const examples = await examplesOf(page);
    assert.equal(examples.length, prints.length);
    const printed = await Promise.all(examples.map(run));
    for (const [index, word] of prints.entries()) assert(printed[index]?.includes(word), printed[index]);
  });
}

test("the examples are correct TypeScript", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "tealagents-"));
  t.after(() => rm(folder, {recursive: true}));
  await mkdir(join(folder, "node_modules/@tealagents"), {recursive: true});
  await symlink(PACKAGE, join(folder, "node_modules/@tealagents/client"));
  await symlink(join(PACKAGE, "node_modules/@types"), join(folder, "node_modules/@types"));
  const files = [];
  for (const page of Object.keys(PRINTS)) {
    for (const example of await examplesOf(page)) {
      files.push(join(folder, `example${files.length}.mts`));
      await writeFile(files.at(-1) ?? "", example);
    }
  }
  const compiler = join(PACKAGE, "node_modules/.bin/tsc");
  const options = ["--strict", "--noEmit", "--module", "nodenext", "--target", "es2023", "--types", "node"];
  const checked = await promisify(execFile)(compiler, [...options, ...files], {cwd: folder}).catch(({stdout}) => ({stdout}));
  assert.equal(checked.stdout, "");
});

test("the documentation names every method", async () => {
  const text = await readFile(join(PACKAGE, PAGE), "utf8");
  const methods = Object.getOwnPropertyNames(Client.prototype).filter((name) => name !== "constructor");
  assert.deepEqual(methods.filter((name) => !new RegExp(`\\b${name}\\b`).test(text)), []);
});

/** @param {string} page */
async function examplesOf(page) {
  const text = await readFile(join(PACKAGE, page), "utf8");
  return [...text.matchAll(/```js\n(.*?)```/gs)].map(([, code = ""]) => code);
}

/**
 * What an example prints. It runs within the package, where its name can be imported.
 *
 * @param {string} example
 */
async function run(example) {
  assert.match(example, ADDRESS);
  const code = example.replace(ADDRESS, service.url);
  const args = ["--input-type=module", "-e", code];
  const {stdout} = await promisify(execFile)(process.execPath, args, {cwd: PACKAGE});
  return stdout;
}
