/** A chart as a file: its numbers as CSV, its pixels as PNG, its lines as SVG. */
import { render } from "preact";
import { ticks } from "./canvas";
import { BAD, themed } from "./colors";
import { Dialog } from "./controls";
import { plain, tickText } from "./format";
import type { Line } from "./line_chart";
import type { Cell, Drawing } from "./saving";

const FORMATS = {
  CSV: "the numbers",
  PNG: "the picture as you see it",
  SVG: "the picture, sharp at every size",
} as const;
type Format = keyof typeof FORMATS;

/** Ask as what to save a chart. */
export function openSave(drawing: Drawing): void {
  const host = document.createElement("div");
  document.body.append(host);
  const close = () => {
    render(null, host);
    host.remove();
  };
  render(
    <Dialog title={`Save ${plain(drawing.title)}`} onClose={close}>
      <ul class="formats">
        {(Object.keys(FORMATS) as Format[]).map((format) => (
          <li key={format}>
            <button type="button" class="filled" onClick={() => void save(drawing, format)}>
              {format}
            </button>
            <span class="soft">{FORMATS[format]}</span>
          </li>
        ))}
      </ul>
      <div class="buttons">
        <button type="submit">Close</button>
      </div>
    </Dialog>,
    host,
  );
}

async function save(drawing: Drawing, format: Format): Promise<void> {
  const name = drawing.title.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "") || "chart";
  const file = `${name.slice(0, 80)}.${format.toLowerCase()}`;
  if (format === "CSV")
    return download(file, new Blob([csv(tableOf(drawing))], { type: "text/csv" }));
  const svg = svgOf(drawing);
  if (format === "SVG") {
    const text = new XMLSerializer().serializeToString(svg);
    return download(file, new Blob([text], { type: "image/svg+xml" }));
  }
  const canvas = await drawn(svg);
  canvas.toBlob((blob) => blob && download(file, blob), "image/png");
}

function download(name: string, blob: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function csv(table: Cell[][]): string {
  return table.map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

/** A cell of a spreadsheet: what looks like a formula stays text. */
function field(cell: Cell): string {
  if (cell === null) return "";
  if (typeof cell === "number") return Number.isNaN(cell) ? "" : String(cell);
  const text = /^[=+@\t\r-]/.test(cell) && Number.isNaN(Number(cell)) ? `'${cell}` : cell;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** The numbers of a chart: of each line and column the least, the mean, the greatest. */
function tableOf(drawing: Drawing): Cell[][] {
  if (drawing.kind !== "lines" || drawing.table) return drawing.table!();
  const head = ["line", "from", "to", "low", "mean", "high", "rows", "not_finite"];
  const rows = drawing.lines.flatMap(({ label, grid }) =>
    Array.from({ length: grid.columns }, (_, j) => j)
      .filter((j) => grid.rows[j])
      .map((j): Cell[] => {
        const start = grid.start + j * grid.width;
        const numbers = [grid.low[j], grid.mean[j], grid.high[j]];
        return [label, start, start + grid.width, ...numbers, grid.rows[j], grid.bad[j]];
      }),
  );
  return [head, ...rows];
}

// --- SVG ----------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [900, 420];
const FRAME = { left: 78, right: 20, top: 44, bottom: 40 };
const LEGEND_LINE = 18;
const FONT = "system-ui, sans-serif";

function make(
  name: string,
  attributes: Record<string, string | number>,
  text?: string,
): SVGElement {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  if (text !== undefined) element.textContent = text;
  return element;
}

function label(x: number, y: number, text: string, anchor = "start", size = 12): SVGElement {
  const fill = themed(size > 12 ? "ink" : "ink-soft");
  const style = { "font-family": FONT, "font-size": size, "text-anchor": anchor };
  return make("text", { x, y, fill, ...style }, text);
}

function svgOf(drawing: Drawing): SVGSVGElement {
  if (drawing.kind === "lines") return linesSvg(drawing);
  if (drawing.kind === "svg") return framed(drawing.svg, drawing.title);
  const { canvas, title } = drawing;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const found = sheet(width + 40, height + 64, title);
  // Cells that are larger than pixels keep their edges.
  const rendering = canvas.width < width ? "pixelated" : "auto";
  const image = { x: 20, y: 44, width, height, href: canvas.toDataURL() };
  found.append(make("image", { ...image, "image-rendering": rendering }));
  return found;
}

function sheet(width: number, height: number, title: string): SVGSVGElement {
  const found = make("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
  found.append(make("rect", { width, height, fill: themed("surface") }));
  found.append(label(20, 26, plain(title), "start", 15));
  return found as SVGSVGElement;
}

/** A picture of the page with its colours written down: a file has no style sheet. */
function framed(svg: SVGSVGElement, title: string): SVGSVGElement {
  const { width, height } = svg.getBoundingClientRect();
  const found = sheet(width + 40, height + 64, title);
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const originals = svg.querySelectorAll<SVGElement>("*");
  copy.querySelectorAll<SVGElement>("*").forEach((element, i) => {
    const style = getComputedStyle(originals[i]);
    for (const name of ["fill", "stroke", "stroke-width", "opacity", "font-size", "font-family"])
      element.setAttribute(name, style.getPropertyValue(name));
  });
  for (const [name, value] of Object.entries({ x: 20, y: 44, width, height }))
    copy.setAttribute(name, String(value));
  found.append(copy);
  return found;
}

function linesSvg(drawing: Drawing & { kind: "lines" }): SVGSVGElement {
  const { lines, from, to, log, title, place } = drawing;
  const named = lines.filter((line) => !line.isFaint);
  const found = sheet(WIDTH, HEIGHT + LEGEND_LINE * Math.ceil(named.length / 3) + 12, title);
  const right = WIDTH - FRAME.right;
  const bottom = HEIGHT - FRAME.bottom;
  const x = (at: number) =>
    FRAME.left + ((at - from) / Math.max(1, to - from)) * (right - FRAME.left);
  const { low, high } = extentOf(lines, log);
  const scale = (value: number) => (log ? Math.log10(value) : value);
  const span = scale(high) - scale(low) || 1;
  const y = (value: number) => bottom - ((scale(value) - scale(low)) / span) * (bottom - FRAME.top);
  for (const tick of valueTicks(low, high, log)) {
    const at = y(tick);
    found.append(
      make("line", { x1: FRAME.left, x2: right, y1: at, y2: at, stroke: themed("rule") }),
    );
    found.append(label(FRAME.left - 8, at + 4, tickText(tick), "end"));
  }
  for (const tick of ticks(from, to, right - FRAME.left))
    found.append(label(x(tick + 0.5), bottom + 20, place(tick), "middle"));
  for (const line of lines) found.append(...lineSvg(line, x, y, log));
  named.forEach((line, i) => {
    const [left, top] = [FRAME.left + (i % 3) * 270, HEIGHT + Math.floor(i / 3) * LEGEND_LINE];
    found.append(make("rect", { x: left, y: top - 9, width: 10, height: 10, fill: line.color }));
    found.append(label(left + 16, top, line.label));
  });
  return found;
}

function lineSvg(
  { grid, color, isFaint }: Line,
  x: (at: number) => number,
  y: (value: number) => number,
  log: boolean,
): SVGElement[] {
  const middle = (j: number) => x(grid.start + (j + 0.5) * grid.width);
  const shown = Array.from({ length: grid.columns }, (_, j) => j).filter((j) => grid.rows[j]);
  const isDrawn = (value: number) => !Number.isNaN(value) && (!log || value > 0);
  const point = (j: number) => `${middle(j).toFixed(1)},${y(grid.mean[j]).toFixed(1)}`;
  const runs: string[][] = [[]];
  for (const j of shown)
    if (isDrawn(grid.mean[j])) runs[runs.length - 1].push(point(j));
    else runs.push([]);
  const spikes = shown
    .filter((j) => isDrawn(grid.low[j]) && grid.high[j] > grid.low[j])
    .map(
      (j) => `M${middle(j).toFixed(1)} ${y(grid.low[j]).toFixed(1)}V${y(grid.high[j]).toFixed(1)}`,
    );
  const found = runs
    .filter((points) => points.length)
    .map((points) =>
      make("polyline", {
        points: points.join(" "),
        fill: "none",
        stroke: color,
        "stroke-width": isFaint ? 1 : 1.75,
        opacity: isFaint ? 0.3 : 1,
      }),
    );
  if (spikes.length && !isFaint)
    found.unshift(make("path", { d: spikes.join(""), stroke: color, opacity: 0.4, fill: "none" }));
  for (const j of shown)
    if (grid.bad[j])
      found.push(
        make("rect", { x: middle(j) - 1.5, y: FRAME.top - 8, width: 3, height: 6, fill: BAD }),
      );
  return found;
}

function extentOf(lines: Line[], log: boolean): { low: number; high: number } {
  let [low, high] = [Infinity, -Infinity];
  for (const { grid } of lines)
    for (let j = 0; j < grid.columns; j++) {
      if (!grid.rows[j] || Number.isNaN(grid.low[j])) continue;
      if (!log || grid.low[j] > 0) low = Math.min(low, grid.low[j]);
      if (!log || grid.high[j] > 0) high = Math.max(high, grid.high[j]);
    }
  if (!(low <= high)) return log ? { low: 0.1, high: 1 } : { low: 0, high: 1 };
  return low === high
    ? { low: low - Math.abs(low || 1) / 10, high: high + Math.abs(high || 1) / 10 }
    : { low, high };
}

function valueTicks(low: number, high: number, log: boolean): number[] {
  if (!log) {
    const step = 10 ** Math.floor(Math.log10((high - low) / 2));
    const width =
      [1, 2, 5].map((n) => n * step).find((each) => (high - low) / each <= 6) ?? 10 * step;
    const found: number[] = [];
    for (let at = Math.ceil(low / width) * width; at <= high; at += width) found.push(at);
    return found;
  }
  const found: number[] = [];
  for (let power = 10 ** Math.ceil(Math.log10(low)); power <= high; power *= 10) found.push(power);
  return found.length > 1 ? found : [low, high];
}

// --- PNG ----------------------------------------------------------------------

/** An SVG as pixels, twice as many as it has points. */
async function drawn(svg: SVGSVGElement): Promise<HTMLCanvasElement> {
  const text = new XMLSerializer().serializeToString(svg);
  const image = new Image();
  // The page may load data: images and nothing else.
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = 2 * image.width;
  canvas.height = 2 * image.height;
  const ctx = canvas.getContext("2d")!;
  ctx.scale(2, 2);
  ctx.drawImage(image, 0, 0);
  return canvas;
}
