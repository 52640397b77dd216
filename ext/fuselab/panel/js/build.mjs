// Builds ../static/{loader,editor,picture,copy}.js and their styles from this folder: `npm install && npm run build`.
// They are committed, so that installing Fuselab needs no Node.
import { copyFile } from "node:fs/promises";
import { build } from "esbuild";

const common = { bundle: true, minify: true, target: "es2022", logLevel: "info" };

await build({
  ...common,
  entryPoints: ["editor.js"],
  outfile: "../static/editor.js",
  format: "esm",
  charset: "utf8",
  banner: { js: "/* Fuselab editor; contains prism-code-editor, see editor.js.LICENSE.txt */" },
});
for (const name of ["loader.js", "picture.js", "copy.js"]) {
  await build({
    ...common,
    entryPoints: [name],
    outfile: `../static/${name}`,
    format: "esm",
    charset: "utf8",
  });
}
for (const name of ["editor.css", "picture.css"]) {
  await build({ ...common, entryPoints: [name], outfile: `../static/${name}` });
}
// The license asks that its text travels with every copy.
await copyFile("node_modules/prism-code-editor/LICENSE", "../static/editor.js.LICENSE.txt");
