// Builds the page into ../static, or into the folder that is given: the same bytes each time.
//
//   npm ci --ignore-scripts && npm run check && npm run build

import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "static");

const common = {
  absWorkingDir: here,
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  legalComments: "none",
};

await mkdir(out, { recursive: true });
await build({
  entryPoints: { app: "src/main.tsx", rare: "src/rare_screens.ts", style: "src/style.css" },
  // What the first screens need is app.js and shared.js; the rest comes when it is asked for.
  splitting: true,
  chunkNames: "shared",
  ...common,
  banner: {
    js: "// Built from python/tdbg/ui/frontend: do not edit.",
    css: "/* Built from python/tdbg/ui/frontend: do not edit. */",
  },
});
// The widget for notebooks is one file: it has its style inside, for a root of its own.
const texts = {};
for (const [name, entry] of Object.entries({ STYLE: "notebook", LIGHT: "light", DARK: "dark" })) {
  const built = await build({
    absWorkingDir: here,
    entryPoints: [`src/${entry}.css`],
    bundle: true,
    minify: true,
    charset: "utf8",
    write: false,
  });
  texts[name] = JSON.stringify(built.outputFiles[0].text);
}
await build({
  entryPoints: { notebook: "src/notebook.tsx" },
  ...common,
  define: texts,
  banner: { js: "// Built from python/tdbg/ui/frontend: do not edit." },
});
for (const name of ["index.html", "icon.svg"]) await copyFile(join(here, name), join(out, name));
const licences = [];
for (const name of ["preact", "uplot"]) {
  const { version } = JSON.parse(
    await readFile(join(here, "node_modules", name, "package.json"), "utf8"),
  );
  const text = await readFile(join(here, "node_modules", name, "LICENSE"), "utf8");
  licences.push(`${name} ${version}\n\n${text.trim()}\n`);
}
await writeFile(join(out, "licences.txt"), licences.join("\n---\n\n"));
