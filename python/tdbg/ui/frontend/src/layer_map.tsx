/** All layers over all steps in one picture: a cell is a tensor within some steps. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { BAD, BEYOND_COLOR, VIRIDIS_TABLE, themed } from "./colors";
import { count, number, percent, plain, shorten, steps as stepsText } from "./format";
import { coarsened, columnOf, folded, lastWithRows, outstanding, usualDistance, type Grid } from "./grid";
import { useSize, useTheme } from "./hooks";
import { treeRows, type Row } from "./tree";
import type { Field, Finding } from "./types";

export type Scale = "all" | "row";

export interface MapProps {
  grid: Grid;
  field: Field;
  scale: Scale;
  from: number;
  to: number;
  order: string[];
  /** Whether each tensor has a row, though they do not fit into the window. */
  each: boolean;
  /** Whether the worst come first, and not the first layers. */
  worst: boolean;
  /** Branches that somebody folded or unfolded, as the address has them. */
  fold: string | undefined;
  onFold: (fold: string | undefined) => void;
  /** What is behind the prefix that all names have, such as gradient/. */
  label: (name: string) => string;
  findings: Finding[];
  /** The step after the newest: until there goes what is not over. */
  end: number;
  cursor: number | undefined;
  onCursor: (step: number) => void;
  onOpen: (tensor: string, step: number) => void;
  onRange: (from: number, to: number) => void;
  onReset: () => void;
}

/** Neighbouring rows that share one, where there are more than fit. */
interface Band extends Row {
  first: Row;
}

/** The name that the pointer is at, and what a click on it would do. */
interface Named {
  row: number;
  unfolds: boolean;
}

interface Cell {
  row: number;
  column: number;
}

const AXIS = 26;
const MOST_HEIGHT = 560;
const SAMPLES = 100_000;
/** How many times what 99 of 100 cells are below a value must be to leave the scale. */
const BEYOND = 10;
const LOGARITHMIC: Field[] = ["rms", "l2", "abs_max", "std"];
const LEAST_ROW = 5;
/** A row whose name can be read. */
const READABLE_ROW = 13;
export const MOST_READABLE = Math.floor((MOST_HEIGHT - AXIS) / READABLE_ROW);
const MOST_ROWS = Math.floor((MOST_HEIGHT - AXIS) / LEAST_ROW);
const INDENT = 11;
const FONT = "11.5px system-ui, sans-serif";

/** Where a value lies between the least and the greatest, from 0 to 1. */
function scaler(field: Field, low: number, high: number): (value: number) => number {
  if (field === "zero_share") return (value) => value;
  if (field === "mean") {
    const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return (value) => 0.5 + value / most / 2;
  }
  const bottom = Math.log(low);
  const span = Math.log(high) - bottom || 1;
  return (value) => (value > 0 ? (Math.log(value) - bottom) / span : 0);
}

interface Extent {
  low: number;
  /** Above it values have a colour of their own, so that a few of them leave the others apart. */
  high: number;
  greatest: number;
}

function extentOf(grid: Grid, rows: number[], field: Field): Extent {
  const found: number[] = [];
  let low = Infinity;
  let greatest = -Infinity;
  // Of a million cells every tenth says where most of them are; the greatest is of all.
  const stride = Math.ceil((rows.length * grid.columns) / SAMPLES);
  for (const i of rows)
    for (let j = i * grid.columns; j < (i + 1) * grid.columns; j++) {
      const [bottom, top] = [grid.low[j], grid.high[j]];
      if (!grid.rows[j] || Number.isNaN(top)) continue;
      if (bottom < low && (bottom > 0 || field === "mean")) low = bottom;
      if (top > greatest) greatest = top;
      if (j % stride === 0 && top > 0) found.push(top);
    }
  if (low > greatest) return { low: 1, high: 1, greatest: 1 };
  if (!LOGARITHMIC.includes(field) || !found.length) return { low, high: greatest, greatest };
  found.sort((a, b) => a - b);
  const [first, last] = [found[Math.floor(found.length * 0.01)], found[Math.floor(found.length * 0.99)]];
  return { low: Math.max(low, first / BEYOND), high: Math.min(greatest, last * BEYOND), greatest };
}

/** Colours of the cells, rows in order: 0 where there is nothing, 1 where there are no numbers. */
function paint(props: MapProps, rows: number[], pixels: Uint32Array): void {
  const { grid, field, scale } = props;
  const distance = usualDistance(grid);
  const whole = extentOf(grid, rows, field);
  rows.forEach((i, y) => {
    const { low, high } = scale === "row" ? extentOf(grid, [i], field) : whole;
    const at = scaler(field, low, high);
    let color = 0;
    let age = distance;
    for (let j = 0; j < grid.columns; j++) {
      const cell = i * grid.columns + j;
      if (grid.rows[cell]) {
        // The greatest: a spike of one step is not lost among many.
        const value = field === "mean" && -grid.low[cell] > grid.high[cell] ? grid.low[cell] : grid.high[cell];
        color = Number.isNaN(value) ? 0 : value > high ? BEYOND_COLOR : VIRIDIS_TABLE[Math.max(0, Math.min(255, Math.round(255 * at(value))))];
        age = 0;
      } else if (++age >= 2 * distance) color = 0;
      pixels[y * grid.columns + j] = color;
    }
  });
}

export function LayerMap(given: MapProps) {
  const { field, from, order, cursor } = given;
  // A step that is announced, and whose cells are on their way, moves nothing yet.
  const to = Math.max(from + 1, Math.min(given.to, given.grid.end));
  const [host, size] = useSize();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useTheme();
  const [cell, setCell] = useState<Cell | null>(null);
  /** The row whose name the pointer is at. */
  const [named, setNamed] = useState<Named | null>(null);
  const [top, setTop] = useState(0);
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);

  const labels = size.width < 620 ? 108 : Math.min(230, Math.round(size.width * 0.2));
  const width = Math.max(1, size.width - labels);
  const whole = useMemo(() => {
    // As many columns in the window as it has pixels, however many lie outside of it.
    const share = (given.grid.columns * given.grid.width) / Math.max(1, to - from);
    return coarsened(given.grid, Math.floor(width * Math.max(1, share)));
  }, [given.grid, width, from, to]);
  const toggled = useMemo(() => new Set((given.fold ?? "").split(",").filter(Boolean).map(decodeURIComponent)), [given.fold]);
  const names = namesOf(whole);
  const tree = useMemo(() => {
    const place = new Map(whole.names.map((name, i) => [name, i]));
    const known = order.map((name) => place.get(name)).filter((i): i is number => i !== undefined);
    const rows = treeRows(known.map((i) => given.label(whole.names[i])), given.each ? Infinity : MOST_READABLE, toggled);
    return rows.map((row) => ({ ...row, members: row.members.map((k) => known[k]) }));
  }, [names, order, given.each, toggled]);
  const inOrder = useMemo(() => {
    // All layers at once: neighbours share a row where there are more than fit.
    const n = given.each || toggled.size ? 1 : Math.ceil(tree.length / MOST_ROWS);
    return Array.from({ length: Math.ceil(tree.length / n) }, (_, y): Band => {
      const rows = tree.slice(y * n, (y + 1) * n);
      return { ...rows[0], first: rows[0], members: rows.flatMap((row) => row.members) };
    });
  }, [tree, given.each, toggled]);
  const bands = useMemo(() => (given.worst ? worstFirst(inOrder, whole, given.findings) : inOrder), [inOrder, given.worst, given.worst && whole, given.worst && given.findings]);
  const grid = useMemo(() => folded(whole, bands.map((band) => band.members)), [whole, bands]);
  const rows = useMemo(() => bands.map((_, y) => y), [bands]);
  const rowOf = useMemo(() => new Map(bands.flatMap((band, y) => band.members.map((i): [string, number] => [whole.names[i], y]))), [names, bands]);
  const indent = bands.some((row) => row.inside !== undefined) ? INDENT : 0;
  const hasBranches = tree.some((row) => row.branch !== undefined);
  const props = { ...given, grid };
  const rowHeight = Math.max(given.each || toggled.size ? READABLE_ROW : LEAST_ROW, Math.min(22, Math.floor((MOST_HEIGHT - AXIS) / Math.max(1, rows.length))));
  const height = Math.min(MOST_HEIGHT, rows.length * rowHeight + AXIS);
  const visible = Math.floor((height - AXIS) / rowHeight);
  const offset = Math.max(0, Math.min(top, rows.length - visible));

  const picture = useMemo(() => {
    if (!rows.length || !grid.columns) return null;
    const made = document.createElement("canvas");
    made.width = grid.columns;
    made.height = rows.length;
    const image = new ImageData(grid.columns, rows.length);
    paint(props, rows, new Uint32Array(image.data.buffer));
    made.getContext("2d")!.putImageData(image, 0, 0);
    return made;
  }, [grid, rows, field, props.scale]);

  const x = (step: number) => labels + ((step - from) / Math.max(1, to - from)) * width;
  const stepAt = (px: number) => from + ((px - labels) / width) * (to - from);

  useEffect(() => {
    const element = canvas.current!;
    const ratio = devicePixelRatio || 1;
    element.width = Math.round(size.width * ratio);
    element.height = Math.round(height * ratio);
    const ctx = element.getContext("2d")!;
    ctx.scale(ratio, ratio);
    ctx.clearRect(0, 0, size.width, height);
    if (!picture || !size.width) return;
    // Which steps are drawn, for who looks at the pixels.
    if (grid.start <= from) element.dataset.drawn = `${from} ${to}`;
    const bottom = visible * rowHeight;
    ctx.save();
    ctx.beginPath();
    ctx.rect(labels, 0, width, bottom);
    ctx.clip();
    ctx.fillStyle = themed("sunken");
    ctx.fillRect(labels, 0, width, bottom);
    ctx.imageSmoothingEnabled = false;
    const left = x(grid.start);
    const cells = (grid.columns * grid.width * width) / Math.max(1, to - from);
    ctx.drawImage(picture, 0, offset, grid.columns, Math.min(visible, rows.length - offset), left, 0, cells, Math.min(visible, rows.length - offset) * rowHeight);
    ctx.fillStyle = BAD;
    const columnWidth = cells / grid.columns;
    for (let y = 0; y < visible && y + offset < rows.length; y++)
      for (let j = 0; j < grid.columns; j++)
        if (grid.bad[rows[y + offset] * grid.columns + j]) {
          ctx.fillRect(left + j * columnWidth, y * rowHeight, Math.max(3, columnWidth), Math.max(2, rowHeight - 1));
        }
    ctx.strokeStyle = themed("surface");
    ctx.lineWidth = 1;
    if (rowHeight >= 14)
      for (let y = 1; y < visible; y++) {
        ctx.beginPath();
        ctx.moveTo(labels, y * rowHeight - 0.5);
        ctx.lineTo(size.width, y * rowHeight - 0.5);
        ctx.stroke();
      }
    for (const finding of props.findings) {
      const y = (rowOf.get(finding.tensor) ?? -1) - offset;
      if (y < 0 || y >= visible) continue;
      const a = Math.max(labels + 2, x(finding.first_step));
      const b = Math.min(size.width - 2, x(finding.over ? finding.last_step + 1 : props.end));
      ctx.strokeStyle = themed(finding.severity);
      ctx.lineWidth = 2;
      // Around what it marks, which it must not hide.
      ctx.strokeRect(a - 2, y * rowHeight, Math.max(columnWidth, b - a) + 4, Math.max(3, rowHeight - 1));
    }
    ctx.restore();
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    ctx.fillStyle = themed("ink-soft");
    const every = rowHeight >= 12 ? 1 : Math.ceil(16 / rowHeight);
    const longest = Math.floor((labels - 14 - indent - (hasBranches ? INDENT : 0)) / 6.1);
    const accused = new Set(props.findings.filter((each) => !each.over).map((each) => rowOf.get(each.tensor)));
    for (let y = 0; y < visible && y + offset < rows.length; y += every) {
      const band = bands[y + offset];
      ctx.fillStyle = cell?.row === y + offset || named?.row === y + offset ? themed("ink") : themed("ink-soft");
      if (accused.has(y + offset)) ctx.fillStyle = themed("error");
      const more = band.branch !== undefined ? ` (${count(band.first.members.length)})` : band.members.length > 1 ? ` +${band.members.length - 1}` : "";
      const middle = Math.max(6, y * rowHeight + rowHeight / 2);
      const left = indent + (band.branch === undefined ? 0 : INDENT - 2);
      if (band.branch !== undefined) triangle(ctx, [indent + 1, middle - 3.5], [indent + 6, middle], [indent + 1, middle + 3.5]);
      ctx.fillText(shorten(band.branch ?? props.label(whole.names[band.members[0]]), longest - more.length) + more, left, middle);
    }
    // The extent of what can be folded.
    ctx.fillStyle = themed("ink-soft");
    for (let y = 0; indent && y < visible && y + offset < rows.length; y++) {
      const { inside } = bands[y + offset];
      const middle = y * rowHeight + rowHeight / 2;
      if (inside === undefined) continue;
      if (bands[y + offset - 1]?.inside !== inside) triangle(ctx, [0, middle - 2.5], [7, middle - 2.5], [3.5, middle + 2.5]);
      else ctx.fillRect(3, y * rowHeight, 1, rowHeight);
    }
    ctx.fillStyle = themed("ink-soft");
    ctx.textBaseline = "top";
    for (const tick of ticks(from, to, width)) {
      const at = x(tick);
      ctx.fillRect(at, bottom, 1, 4);
      ctx.textAlign = at > size.width - 30 ? "right" : at < labels + 16 ? "left" : "center";
      ctx.fillText(count(tick), at, bottom + 7);
    }
    ctx.textAlign = "left";
    if (cursor !== undefined && cursor >= from && cursor < to) {
      ctx.fillStyle = themed("ink");
      ctx.fillRect(x(cursor) + Math.min(8, columnWidth / 2) - 0.5, 0, 1, bottom);
    }
    if (cell) {
      ctx.strokeStyle = themed("ink");
      ctx.lineWidth = 1.5;
      const column = Math.max(0, lastWithRows(grid, rows[cell.row], cell.column));
      ctx.strokeRect(x(grid.start + column * grid.width) - 0.5, (cell.row - offset) * rowHeight, Math.max(4, columnWidth + 1), rowHeight - 1);
    }
    if (drag) {
      ctx.fillStyle = themed("accent-soft");
      ctx.fillRect(Math.min(x(drag.from), x(drag.to)), 0, Math.abs(x(drag.to) - x(drag.from)), bottom);
    }
  }, [picture, props.findings, size.width, height, offset, from, to, cursor, cell, named, drag, theme]);

  const cellAt = (event: PointerEvent | MouseEvent): Cell | null => {
    const rect = canvas.current!.getBoundingClientRect();
    const px = event.clientX - rect.left;
    const py = event.clientY - rect.top;
    const row = Math.floor(py / rowHeight) + offset;
    if (px < labels || py >= visible * rowHeight || row >= rows.length) return null;
    return { row, column: columnOf(grid, stepAt(px)) };
  };

  const nameAt = (event: PointerEvent | MouseEvent): Named | null => {
    const row = Math.floor(event.offsetY / rowHeight) + offset;
    if (event.offsetX >= labels || event.offsetY >= visible * rowHeight || row >= rows.length) return null;
    // The margin is that of the branch around; a name unfolds its own, if it is one.
    return { row, unfolds: bands[row].branch !== undefined && !(event.offsetX < indent && bands[row].inside !== undefined) };
  };

  /** Unfold a branch, or fold the one that a row is in. */
  const toggle = ({ row, unfolds }: Named) => {
    const path = unfolds ? bands[row].branch : bands[row].inside;
    if (path === undefined) return;
    const next = new Set(toggled);
    if (!next.delete(path)) next.add(path);
    setCell(null);
    props.onFold([...next].map(encodeURIComponent).join() || undefined);
  };

  const move = (dr: number, dc: number) => {
    const now = cell ?? { row: 0, column: columnOf(grid, cursor ?? to - 1) };
    const row = Math.max(0, Math.min(rows.length - 1, now.row + dr));
    let column = Math.max(0, Math.min(grid.columns - 1, now.column + dc));
    while (dc && column > 0 && column < grid.columns - 1 && !grid.rows[rows[row] * grid.columns + column]) column += dc;
    setCell({ row, column });
    if (row < offset) setTop(row);
    else if (row >= offset + visible) setTop(row - visible + 1);
    if (dc) props.onCursor(grid.start + column * grid.width);
  };

  const hint = named ? bands[named.row]?.[named.unfolds ? "branch" : "inside"] : undefined;

  const open = (at: Cell) => {
    const column = Math.max(0, lastWithRows(grid, at.row, at.column));
    props.onOpen(whole.names[outstanding(whole, bands[at.row].members, column)], grid.start + column * grid.width);
  };

  return (
    <div class="map">
      <div class="map-host" ref={host}>
        <canvas
          ref={canvas}
          class="map-canvas"
          style={{ height: `${height}px` }}
          tabIndex={0}
          role="img"
          data-labels={labels}
          data-row-height={rowHeight}
          data-rows={rows.length}
          aria-label={describe(props, rows)}
          onPointerDown={(event) => {
            const name = nameAt(event);
            if (name) toggle(name);
            if (!cellAt(event)) return;
            (event.target as HTMLElement).setPointerCapture(event.pointerId);
            const at = stepAt(event.offsetX);
            setDrag({ from: at, to: at });
          }}
          onPointerMove={(event) => {
            if (drag) setDrag({ ...drag, to: stepAt(event.offsetX) });
            else {
              setCell(cellAt(event));
              setNamed(nameAt(event));
            }
          }}
          onPointerUp={(event) => {
            if (!drag) return;
            setDrag(null);
            const wide = Math.abs(x(drag.to) - x(drag.from)) > 6;
            const at = cellAt(event);
            if (wide) {
              const [a, b] = [drag.from, drag.to].sort((p, q) => p - q);
              props.onRange(Math.max(from, Math.floor(a)), Math.min(to, Math.ceil(b)));
            } else if (at) open(at);
          }}
          onPointerLeave={() => (setCell(null), setNamed(null))}
          onDblClick={props.onReset}
          onWheel={(event) => {
            if (rows.length <= visible || event.ctrlKey) return;
            event.preventDefault();
            setTop(Math.max(0, Math.min(rows.length - visible, offset + Math.sign(event.deltaY) * 3)));
          }}
          onKeyDown={(event) => {
            const by: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
            if (by[event.key]) {
              event.preventDefault();
              event.stopPropagation();
              move(...by[event.key]);
            } else if (event.key === "Enter" && cell) open(cell);
            else if ((event.key === "+" || event.key === "-") && cell) toggle({ row: cell.row, unfolds: event.key === "+" });
          }}
        />
      </div>
      <p class="reading" aria-live="polite">
        {hint !== undefined ? (
          <span>
            <b>{plain(hint)}</b>
            {named!.unfolds ? ` ${count(bands[named!.row].first.members.length)} tensors in one row, which shows the worst of them; a click unfolds it` : " a click folds it into one row"}
          </span>
        ) : cell && bands[cell.row] ? <Reading grid={whole} field={field} band={bands[cell.row].members} column={Math.max(0, lastWithRows(grid, cell.row, cell.column))} /> : <Legend {...props} rows={rows} />}
      </p>
    </div>
  );
}

const GRAVITY = { info: 1, warning: 2, error: 3 };

/** Rows with findings, the gravest first; then those with what is not finite; then the greatest. */
function worstFirst(bands: Band[], grid: Grid, findings: Finding[]): Band[] {
  const gravity = new Map<string, number>();
  for (const each of findings) gravity.set(each.tensor, Math.max(gravity.get(each.tensor) ?? 0, GRAVITY[each.severity] - (each.over ? 0.5 : 0)));
  const weighed = bands.map((band) => {
    let [grave, bad, most] = [0, 0, -Infinity];
    for (const i of band.members) {
      grave = Math.max(grave, gravity.get(grid.names[i]) ?? 0);
      for (let j = i * grid.columns; j < (i + 1) * grid.columns; j++) {
        if (!grid.rows[j]) continue;
        bad += grid.bad[j];
        if (grid.high[j] > most) most = grid.high[j];
      }
    }
    // Rows of a branch are no longer neighbours.
    return { band: { ...band, inside: undefined }, grave, bad, most };
  });
  weighed.sort((a, b) => b.grave - a.grave || b.bad - a.bad || b.most - a.most || 0);
  return weighed.map(({ band }) => band);
}

function triangle(ctx: CanvasRenderingContext2D, ...[[x, y], ...rest]: [number, number][]): void {
  ctx.beginPath();
  ctx.moveTo(x, y);
  for (const [a, b] of rest) ctx.lineTo(a, b);
  ctx.fill();
}

/** The names of a grid, as one that is the same as long as they are. */
function namesOf(grid: Grid): string {
  return grid.names.join("\n");
}

/** The cell under the cursor, exactly: what was recorded, never what lies between. */
function Reading({ grid, band, column, field }: { grid: Grid; field: Field; band: number[]; column: number }) {
  const row = outstanding(grid, band, column);
  const held = lastWithRows(grid, row, column);
  const name = plain(grid.names[row]);
  if (held < 0) return <span><b>{name}</b> nothing recorded so far</span>;
  const at = row * grid.columns + held;
  const show = field === "zero_share" ? percent : number;
  const first = grid.start + held * grid.width;
  const n = grid.rows[at];
  return (
    <span>
      {band.length > 1 && <span class="soft">of {count(band.length)} </span>}
      <b>{name}</b> {stepsText(first, first + grid.width - 1)}
      {n === 1 ? <em>{show(grid.mean[at])}</em> : (
        <>
          <span class="soft"> · {count(n)} rows ·</span> low <em>{show(grid.low[at])}</em> mean <em>{show(grid.mean[at])}</em> high <em>{show(grid.high[at])}</em>
        </>
      )}
      {grid.bad[at] > 0 && <strong class="bad"> NaN or Inf in {count(grid.bad[at])}</strong>}
    </span>
  );
}

function Legend({ grid, rows, field, scale }: MapProps & { rows: number[] }) {
  const { low, high, greatest } = useMemo(() => extentOf(grid, rows, field), [grid, rows, field]);
  const show = field === "zero_share" ? percent : number;
  const ends = field === "zero_share" ? [0, 1] : field === "mean" ? [-Math.max(-low, high), Math.max(-low, high)] : [low, high];
  return (
    <span class="legend">
      {scale === "row" ? "least of the row" : show(ends[0])}
      <i class="ramp" />
      {scale === "row" ? "greatest" : show(ends[1])}
      {scale !== "row" && greatest > high && (
        <>
          <i class="swatch beyond" /> beyond, up to {show(greatest)}
        </>
      )}
      <i class="swatch bad" /> NaN or Inf
      <i class="swatch none" /> not recorded
    </span>
  );
}

function describe({ grid, field, from, to }: MapProps, rows: number[]): string {
  let best = -Infinity;
  let where = "";
  let bad = 0;
  for (const i of rows)
    for (let j = 0; j < grid.columns; j++) {
      const at = i * grid.columns + j;
      if (!grid.rows[at]) continue;
      bad += grid.bad[at];
      if (grid.high[at] > best) {
        best = grid.high[at];
        where = `${plain(grid.names[i])}, step ${count(grid.start + j * grid.width)}`;
      }
    }
  const highest = where ? `; highest, ${number(best)}, at ${where}` : "";
  return `Layer map: ${field} of ${rows.length} tensors, ${stepsText(from, Math.max(from, to - 1))}${highest}; ${count(bad)} rows not finite. Arrow keys move, Enter opens the tensor.`;
}

export function ticks(from: number, to: number, width: number): number[] {
  const most = Math.max(2, Math.floor(width / 90));
  const raw = Math.max(1, (to - from) / most);
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = Math.max(1, [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw)!);
  const found: number[] = [];
  for (let at = Math.ceil(from / unit) * unit; at < to; at += unit) found.push(at);
  return found;
}
