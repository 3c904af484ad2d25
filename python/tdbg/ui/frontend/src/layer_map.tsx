/** All layers over all steps in one picture: a cell is a tensor within some steps. */
import { useMemo } from "preact/hooks";
import { BAD, BEYOND_COLOR, themed, VIRIDIS_TABLE } from "./colors";
import { count, counted, number, percent, plain, steps as stepsText } from "./format";
import {
  coarsened,
  filledColumns,
  folded,
  type Grid,
  grouped,
  lastWithRows,
  outstanding,
  placesOf,
  standing,
  usualDistance,
} from "./grid";
import {
  MapCanvas,
  mostRows,
  type Name,
  type Named,
  type Plot,
  READABLE_ROW,
  useFrame,
} from "./map_canvas";
import { type Row, treeRows } from "./tree";
import type { Finding, RankField } from "./types";

export type Scale = "all" | "row";

export interface MapProps {
  grid: Grid;
  field: RankField;
  /** What the rows are. */
  what?: string;
  scale: Scale;
  from: number;
  to: number;
  order: string[];
  /** The same over the whole run, coarser: colours stay what they are when the range changes. */
  whole?: Grid | null;
  /** For how many steps a record stands, where that is known. */
  interval?: number | null;
  /** Room for the names, where it is not that of all charts. */
  gutter?: number;
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

const MOST_HEIGHT = 560;
const SAMPLES = 20_000;
/** In so many columns of the whole run the least and the greatest colour are looked for. */
export const EXTENT_COLUMNS = 64;
/** How many times what most cells are below a value must be to leave the scale. */
const BEYOND = 10;
const LOGARITHMIC: RankField[] = ["rms", "l2", "abs_max", "std", "seconds"];
export const MOST_READABLE = mostRows(MOST_HEIGHT, READABLE_ROW);
const MOST_ROWS = mostRows(MOST_HEIGHT);
const INDENT = 11;

/** What the scale goes from and to: about zero, where values lie on both sides of it. */
function endsOf(field: RankField, low: number, high: number): [number, number] {
  if (field === "zero_share") return [0, 1];
  const most = Math.max(-low, high);
  return field === "mean" && low < 0 && high > 0 ? [-most, most] : [low, high];
}

/** Where a value lies between the ends, from 0 to 1. */
function scaler(field: RankField, low: number, high: number): (value: number) => number {
  const place = LOGARITHMIC.includes(field) ? Math.log : (value: number) => value;
  const [bottom, top] = endsOf(field, low, high).map(place);
  const span = top - bottom || 1;
  return (value) => (value > 0 || place !== Math.log ? (place(value) - bottom) / span : 0);
}

interface Extent {
  low: number;
  /** Above it values have a colour of their own, so that a few of them leave the others apart. */
  high: number;
  greatest: number;
}

/**
 * The part of the cells, sorted, within the scale: 99 of 100 where each is of one record.
 *
 * A wider cell holds the greatest of its records, so that a spike is in more of them.
 */
export function shareWithin(grid: Grid, interval?: number | null): number {
  return 1 - 0.01 * Math.min(10, Math.max(1, grid.width / (interval || 1)));
}

function extentOf(grid: Grid, rows: number[], field: RankField, interval?: number | null): Extent {
  let low = Infinity;
  let greatest = -Infinity;
  // Of many cells some say where most of them are; the greatest is of all.
  const stride = Math.ceil((rows.length * grid.columns) / SAMPLES);
  const sample = new Float32Array(
    Math.ceil((rows.length * grid.columns) / Math.max(1, stride)) + 1,
  );
  let n = 0;
  let k = 0;
  for (const i of rows)
    for (let j = i * grid.columns; j < (i + 1) * grid.columns; j++, k++) {
      const top = grid.high[j];
      if (!grid.rows[j] || Number.isNaN(top)) continue;
      const bottom = grid.low[j];
      if (bottom < low && (bottom > 0 || field === "mean")) low = bottom;
      if (top > greatest) greatest = top;
      if (k % stride === 0 && top > 0) sample[n++] = top;
    }
  if (low > greatest) return { low: 1, high: 1, greatest: 1 };
  if (!LOGARITHMIC.includes(field) || !n) return { low, high: greatest, greatest };
  const found = sample.subarray(0, n).sort();
  const share = shareWithin(grid, interval);
  const [first, last] = [found[Math.floor(n * 0.01)], found[Math.floor(n * share)]];
  return { low: Math.max(low, first / BEYOND), high: Math.min(greatest, last * BEYOND), greatest };
}

/** Colours of the cells, rows in order: 0 where there is nothing, 1 where there are no numbers. */
function paint(props: MapProps, rows: number[], extents: Extent[], pixels: Uint32Array): void {
  const { grid, field, scale } = props;
  const usual = usualDistance(filledColumns(grid));
  const most = props.interval ? Math.ceil((1.5 * props.interval) / grid.width) : undefined;
  rows.forEach((i, y) => {
    const { low, high } = extents[scale === "row" ? i : 0];
    const at = scaler(field, low, high);
    const filled = filledColumns(grid, [i]);
    standing(filled, grid.columns, usual, most).forEach((n, k) => {
      const cell = i * grid.columns + filled[k];
      // The greatest: a spike of one step is not lost among many.
      const value =
        field === "mean" && -grid.low[cell] > grid.high[cell] ? grid.low[cell] : grid.high[cell];
      let color = 0;
      if (value > high) color = BEYOND_COLOR;
      else if (!Number.isNaN(value))
        color = VIRIDIS_TABLE[Math.max(0, Math.min(255, Math.round(255 * at(value))))];
      const first = y * grid.columns + filled[k];
      pixels.fill(color, first, first + n);
    });
  });
}

/** Cells with NaN or Inf, in *n* rows from *offset* on. */
function drawBad(
  ctx: CanvasRenderingContext2D,
  grid: Grid,
  offset: number,
  n: number,
  rectangle: (column: number, row: number) => [number, number, number, number],
): void {
  ctx.fillStyle = BAD;
  for (let y = 0; y < n; y++)
    for (let j = 0; j < grid.columns; j++)
      if (grid.bad[(y + offset) * grid.columns + j]) ctx.fillRect(...rectangle(j, y));
}

export function LayerMap(props: MapProps) {
  const { field, scale, order, findings } = props;
  const frame = useFrame(props.grid, props.from, props.to, props.gutter);
  const whole = frame.grid;
  const toggled = useMemo(
    () => new Set((props.fold ?? "").split(",").filter(Boolean).map(decodeURIComponent)),
    [props.fold],
  );
  const names = namesOf(whole);
  const isRead = props.each || toggled.size > 0;
  const tree = useMemo(() => {
    const known = placesOf(whole, order);
    const rows = treeRows(
      known.map((i) => props.label(whole.names[i])),
      props.each ? Infinity : MOST_READABLE,
      toggled,
    );
    return rows.map((row) => ({ ...row, members: row.members.map((k) => known[k]) }));
  }, [names, order, props.each, toggled]);
  const inOrder = useMemo(
    // All layers at once: neighbours share a row where there are more than fit.
    () =>
      grouped(tree, isRead ? Infinity : MOST_ROWS).map(
        (rows): Band => ({
          ...rows[0],
          first: rows[0],
          members: rows.flatMap((row) => row.members),
        }),
      ),
    [tree, isRead],
  );
  const bands = useMemo(
    () => (props.worst ? worstFirst(inOrder, whole, findings) : inOrder),
    [inOrder, props.worst, props.worst && whole, props.worst && findings],
  );
  const grid = useMemo(
    () =>
      folded(
        whole,
        bands.map((band) => band.members),
      ),
    [whole, bands],
  );
  const rows = useMemo(() => bands.map((_, y) => y), [bands]);
  const rowOf = useMemo(
    () =>
      new Map(
        bands.flatMap((band, y) => band.members.map((i): [string, number] => [whole.names[i], y])),
      ),
    [names, bands],
  );
  const indent = bands.some((row) => row.inside !== undefined) ? INDENT : 0;
  const hasBranches = tree.some((row) => row.branch !== undefined);
  const shown = { ...props, grid, to: frame.to };
  const accused = new Set(
    findings.filter((each) => !each.over).map((each) => rowOf.get(each.tensor)),
  );

  const all = props.whole?.names.length === whole.names.length ? props.whole : props.grid;
  const reference = useMemo(
    () =>
      folded(
        coarsened(all, EXTENT_COLUMNS),
        bands.map((band) => band.members),
      ),
    [all, bands],
  );
  // Those of all rows, or of each.
  const extents = useMemo(
    () =>
      scale === "row"
        ? rows.map((i) => extentOf(reference, [i], field, props.interval))
        : [extentOf(reference, rows, field, props.interval)],
    [reference, rows, field, scale, props.interval],
  );
  const picture = useMemo(() => {
    if (!rows.length || !grid.columns) return null;
    const made = document.createElement("canvas");
    made.width = grid.columns;
    made.height = rows.length;
    const image = new ImageData(grid.columns, rows.length);
    paint(shown, rows, extents, new Uint32Array(image.data.buffer));
    made.getContext("2d")!.putImageData(image, 0, 0);
    return made;
  }, [grid, rows, extents, props.interval]);

  const cells = useMemo(
    () =>
      ({ ctx, x, columnWidth, rowHeight, offset, visible }: Plot) => {
        if (!picture) return;
        ctx.imageSmoothingEnabled = false;
        const left = x(grid.start);
        const n = Math.min(visible, rows.length - offset);
        ctx.drawImage(
          picture,
          0,
          offset,
          grid.columns,
          n,
          left,
          0,
          columnWidth * grid.columns,
          n * rowHeight,
        );
        drawBad(ctx, grid, offset, n, (j, y) => [
          left + j * columnWidth,
          y * rowHeight,
          Math.max(3, columnWidth),
          Math.max(2, rowHeight - 1),
        ]);
        ctx.fillStyle = themed("surface");
        if (rowHeight >= 14)
          for (let y = 1; y < visible; y++)
            ctx.fillRect(x(frame.from), y * rowHeight - 1, frame.width, 1);
        ctx.lineWidth = 2;
        for (const finding of findings) {
          const y = (rowOf.get(finding.tensor) ?? -1) - offset;
          if (y < 0 || y >= visible) continue;
          const a = Math.max(x(frame.from) + 2, x(finding.first_step));
          const b = Math.min(x(frame.to) - 2, x(finding.over ? finding.last_step + 1 : props.end));
          ctx.strokeStyle = themed(finding.severity);
          // Around what it marks, which it must not hide.
          ctx.strokeRect(
            a - 2,
            y * rowHeight,
            Math.max(columnWidth, b - a) + 4,
            Math.max(3, rowHeight - 1),
          );
        }
      },
    [picture, findings],
  );

  const name = (row: number): Name => {
    const { branch, first, members } = bands[row];
    let more = members.length > 1 ? ` +${members.length - 1}` : "";
    if (branch !== undefined) more = ` (${count(first.members.length)})`;
    return {
      text: branch ?? props.label(whole.names[members[0]]),
      more,
      left: indent + (branch === undefined ? 0 : INDENT - 2),
      isAccused: accused.has(row),
    };
  };

  /** Triangles at branches that are folded, and the extent of those that can be. */
  const recorded = useMemo(() => filledColumns(grid), [grid]);
  const beside = ({ ctx, x, rowHeight, offset, visible }: Plot) => {
    ctx.fillStyle = themed("ink-soft");
    // A rug of what was recorded.
    for (const j of recorded) {
      const at = x(grid.start + (j + 0.5) * grid.width);
      if (at > frame.labels) ctx.fillRect(at - 0.5, visible * rowHeight, 1, 3);
    }
    bands.slice(offset, offset + visible).forEach(({ branch, inside }, y) => {
      const middle = y * rowHeight + rowHeight / 2;
      if (branch !== undefined)
        triangle(ctx, [indent + 1, middle - 3.5], [indent + 6, middle], [indent + 1, middle + 3.5]);
      if (inside === undefined) return;
      if (bands[y + offset - 1]?.inside !== inside)
        triangle(ctx, [0, middle - 2.5], [7, middle - 2.5], [3.5, middle + 2.5]);
      else ctx.fillRect(3, y * rowHeight, 1, rowHeight);
    });
  };

  const branchAt = ({ row, unfolds }: Named) => (unfolds ? bands[row].branch : bands[row].inside);
  const held = (row: number, column: number) => Math.max(0, lastWithRows(grid, row, column));
  return (
    <MapCanvas
      {...props}
      frame={frame}
      description={describe(shown, rows)}
      rows={rows.length}
      mostHeight={MOST_HEIGHT}
      leastRow={isRead ? READABLE_ROW : undefined}
      home={frame.to - 1}
      cells={cells}
      name={name}
      margin={indent + (hasBranches ? INDENT : 0)}
      beside={beside}
      place={count}
      held={held}
      // The margin is that of the branch around; a name unfolds its own, if it is one.
      unfolds={(row, px) =>
        bands[row].branch !== undefined && !(px < indent && bands[row].inside !== undefined)
      }
      onName={(at) => {
        const path = branchAt(at);
        if (path === undefined) return false;
        const next = new Set(toggled);
        if (!next.delete(path)) next.add(path);
        props.onFold([...next].map(encodeURIComponent).join() || undefined);
        return true;
      }}
      onOpen={({ row, column }) => {
        const at = held(row, column);
        props.onOpen(
          whole.names[outstanding(whole, bands[row].members, at)],
          grid.start + at * grid.width,
        );
      }}
      reading={(cell, named) => {
        const branch = named ? branchAt(named) : undefined;
        if (branch !== undefined)
          return (
            <span>
              <b>{plain(branch)}</b>
              {named!.unfolds
                ? ` ${count(bands[named!.row].first.members.length)} tensors in one row, which shows the worst of them; click to unfold it`
                : " click to fold it into one row"}
            </span>
          );
        return cell ? (
          <Reading
            grid={whole}
            field={field}
            band={bands[cell.row].members}
            column={held(cell.row, cell.column)}
          />
        ) : (
          <Legend {...extents[0]} field={field} scale={scale} />
        );
      }}
    />
  );
}

const GRAVITY = { info: 1, warning: 2, error: 3 };

/** Rows with findings, the gravest first; then those with what is not finite; then the greatest. */
function worstFirst(bands: Band[], grid: Grid, findings: Finding[]): Band[] {
  const gravity = new Map<string, number>();
  for (const each of findings)
    gravity.set(
      each.tensor,
      Math.max(gravity.get(each.tensor) ?? 0, GRAVITY[each.severity] - (each.over ? 0.5 : 0)),
    );
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

function shownBy(field: RankField): (value: number) => string {
  if (field === "zero_share") return percent;
  return field === "seconds" ? (value) => `${number(value)} s` : number;
}

/** The names of a grid, as one that is the same as long as they are. */
function namesOf(grid: Grid): string {
  return grid.names.join("\n");
}

/** The cell under the cursor, exactly: what was recorded, never what lies between. */
function Reading({
  grid,
  band,
  column,
  field,
}: {
  grid: Grid;
  field: RankField;
  band: number[];
  column: number;
}) {
  const row = outstanding(grid, band, column);
  const held = lastWithRows(grid, row, column);
  const name = plain(grid.names[row]);
  if (held < 0)
    return (
      <span>
        <b>{name}</b> nothing recorded so far
      </span>
    );
  const at = row * grid.columns + held;
  const show = shownBy(field);
  const first = grid.start + held * grid.width;
  const n = grid.rows[at];
  return (
    <span>
      {band.length > 1 && <span class="soft">of {count(band.length)} </span>}
      <b>{name}</b> {stepsText(first, first + grid.width - 1)}
      {n === 1 ? (
        <em>{show(grid.mean[at])}</em>
      ) : (
        <>
          <span class="soft"> · {count(n)} rows ·</span> low <em>{show(grid.low[at])}</em> mean{" "}
          <em>{show(grid.mean[at])}</em> high <em>{show(grid.high[at])}</em>
        </>
      )}
      {grid.bad[at] > 0 && <strong class="bad"> NaN or Inf in {count(grid.bad[at])}</strong>}
    </span>
  );
}

function Legend({ low, high, greatest, field, scale }: Extent & Pick<MapProps, "field" | "scale">) {
  const show = shownBy(field);
  const ends = endsOf(field, low, high);
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

function describe({ grid, field, from, to, what = "tensor" }: MapProps, rows: number[]): string {
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
  return `Map: ${field} of ${counted(rows.length, what)}, ${stepsText(from, Math.max(from, to - 1))}${highest}; ${count(bad)} rows not finite. Arrow keys move, Enter opens the ${what}.`;
}
