// Unpacks the browser of @sparticuz/chromium into $TMPDIR, and says where its program is.
//
//   npm ci --ignore-scripts && TMPDIR=$PWD/unpacked node unpack.mjs
import chromium, { inflate } from "@sparticuz/chromium";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const program = await chromium.executablePath();
const packed = join(dirname(fileURLToPath(import.meta.resolve("@sparticuz/chromium"))), "..", "bin");
// What it needs of a system, for those that have none of it: NSS, NSPR, expat.
await inflate(join(packed, "al2023.tar.br"));
console.log(program);
