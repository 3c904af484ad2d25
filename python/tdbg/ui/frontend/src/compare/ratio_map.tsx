/** How many times as large the tensors of one run are: layer by place, a colour for each side. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { BAD, isDark, themed } from "../colors";
import { count, plain, shorten } from "../format";
import { coarsened, columnOf, usualDistance, type Grid } from "../grid";
import { useSize, useTheme } from "../hooks";
import { ticks } from "../layer_map";
import { placeText, timesText, type By } from "./alignment";

interface Props {
  /** Binary logarithms: low, high and mean. */
  grid: Grid;
  order: string[];
  by: By;
  from: number;
  to: number;
  cursor: number | undefined;
  label: (name: string) => string;
  /** What the two runs are called. */
  names: [string, string];
  onCursor: (place: number) => void;
  onOpen: (tensor: string, place: number) => void;
  onRange: (from: number, to: number) => void;
  onReset: () => void;
}

const AXIS = 26;
const MOST_HEIGHT = 480;
const LEAST_ROW = 5;
/** The scale ends at what 99 of 100 cells are below, and at twice as large at least. */
const SHARE = 0.99;
/** Blue where the run below the line is larger, orange where the one above it is. */
const ENDS = [
  [0, 114, 178],
  [213, 94, 0],
];

/** What is so many times as far as the scale goes has a colour beyond its ends: a spike among many. */
const BEYOND = 1.5;
const BEYOND_LIGHT = ["rgb(0,36,74)", "rgb(104,32,0)"];
const BEYOND_DARK = ["rgb(150,215,255)", "rgb(255,200,140)"];

/** The cell of a row and column that is furthest from 1, of the row's tensors. */
function furthest(grid: Grid, members: number[], column: number): number {
  let best = -1;
  let most = -1;
  for (const i of members) {
    const at = i * grid.columns + column;
    if (!grid.rows[at]) continue;
    const size = grid.bad[at] ? Infinity : Math.max(grid.high[at], -grid.low[at]);
    if (size > most || best < 0) [best, most] = [i, size];
  }
  return best;
}

/** Of a cell the bound that is further from 1. */
function valueOf(grid: Grid, at: number): number {
  return -grid.low[at] > grid.high[at] ? grid.low[at] : grid.high[at];
}

export function RatioMap(props: Props) {
  const { from, by, cursor, order } = props;
  // A step that is announced, and whose cells are on their way, moves nothing yet.
  const to = Math.max(from + 1, Math.min(props.to, props.grid.end));
  const [host, size] = useSize();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useTheme();
  const [cell, setCell] = useState<{ row: number; column: number } | null>(null);
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);
  const labels = size.width < 620 ? 108 : Math.min(230, Math.round(size.width * 0.2));
  const width = Math.max(1, size.width - labels);
  const grid = useMemo(() => {
    const share = (props.grid.columns * props.grid.width) / Math.max(1, to - from);
    return coarsened(props.grid, Math.floor(width * Math.max(1, share)));
  }, [props.grid, width, from, to]);
  const rows = useMemo(() => {
    const place = new Map(grid.names.map((name, i) => [name, i]));
    const known = order.map((name) => place.get(name)).filter((i): i is number => i !== undefined);
    // All layers at once: neighbours share a row, which shows the one furthest from 1.
    const n = Math.ceil(known.length / Math.floor((MOST_HEIGHT - AXIS) / LEAST_ROW)) || 1;
    return Array.from({ length: Math.ceil(known.length / n) }, (_, y) => known.slice(y * n, (y + 1) * n));
  }, [grid, order]);
  const { limit, beyond } = useMemo(() => {
    const found: number[] = [];
    let greatest = 0;
    for (const members of rows)
      for (let j = 0; j < grid.columns; j++) {
        const i = furthest(grid, members, j);
        const value = i < 0 ? NaN : Math.abs(valueOf(grid, i * grid.columns + j));
        if (value < 40) found.push(value);
        if (value > greatest) greatest = value;
      }
    found.sort((a, b) => a - b);
    const limit = Math.max(1, found[Math.floor(found.length * SHARE)] ?? 1);
    return { limit, beyond: greatest > limit * BEYOND ? greatest : 0 };
  }, [grid, rows]);
  const rowHeight = Math.max(LEAST_ROW, Math.min(22, Math.floor((MOST_HEIGHT - AXIS) / Math.max(1, rows.length))));
  const bottom = rows.length * rowHeight;
  const height = bottom + AXIS;
  const x = (place: number) => labels + ((place - from) / Math.max(1, to - from)) * width;
  const placeAt = (px: number) => from + ((px - labels) / width) * (to - from);

  useEffect(() => {
    const element = canvas.current!;
    const ratio = devicePixelRatio || 1;
    element.width = Math.round(size.width * ratio);
    element.height = Math.round(height * ratio);
    const ctx = element.getContext("2d")!;
    ctx.scale(ratio, ratio);
    if (!size.width) return;
    const middle = isDark() ? [44, 50, 60] : [247, 247, 247];
    const distance = usualDistance(grid);
    ctx.save();
    ctx.beginPath();
    ctx.rect(labels, 0, width, bottom);
    ctx.clip();
    ctx.fillStyle = themed("sunken");
    ctx.fillRect(labels, 0, width, bottom);
    const wide = (grid.width * width) / Math.max(1, to - from);
    rows.forEach((members, y) => {
      for (let j = 0; j < grid.columns; j++) {
        const i = furthest(grid, members, j);
        if (i < 0) continue;
        const at = i * grid.columns + j;
        const value = valueOf(grid, at);
        if (Number.isNaN(value) && !grid.bad[at]) continue;
        const share = Math.min(1, Math.abs(value) / limit);
        const side = value > 0 ? 1 : 0;
        const end = ENDS[side];
        ctx.fillStyle = grid.bad[at] ? BAD : Math.abs(value) > limit * BEYOND ? (isDark() ? BEYOND_DARK : BEYOND_LIGHT)[side] : `rgb(${middle.map((m, k) => Math.round(m + (end[k] - m) * share)).join()})`;
        const left = Math.floor(x(grid.start + j * grid.width));
        ctx.fillRect(left, y * rowHeight, Math.max(grid.bad[at] || Math.abs(value) > limit * BEYOND ? 3 : 1, Math.ceil(wide * distance)), rowHeight > 9 ? rowHeight - 1 : rowHeight);
      }
    });
    ctx.restore();
    ctx.font = "11.5px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    const every = rowHeight >= 12 ? 1 : Math.ceil(16 / rowHeight);
    const longest = Math.floor((labels - 14) / 6.1);
    for (let y = 0; y < rows.length; y += every) {
      ctx.fillStyle = themed(cell?.row === y ? "ink" : "ink-soft");
      const more = rows[y].length > 1 ? ` +${rows[y].length - 1}` : "";
      ctx.fillText(shorten(props.label(grid.names[rows[y][0]]), longest - more.length) + more, 0, Math.max(6, y * rowHeight + rowHeight / 2));
    }
    ctx.fillStyle = themed("ink-soft");
    ctx.textBaseline = "top";
    for (const tick of ticks(from, to, width)) {
      const at = x(tick);
      ctx.fillRect(at, bottom, 1, 4);
      ctx.textAlign = at > size.width - 30 ? "right" : at < labels + 16 ? "left" : "center";
      ctx.fillText(placeText(by, tick), at, bottom + 7);
    }
    ctx.fillStyle = themed("ink");
    if (cursor !== undefined && cursor >= from && cursor < to) ctx.fillRect(x(cursor) - 0.5, 0, 1, bottom);
    if (cell) {
      ctx.strokeStyle = themed("ink");
      ctx.lineWidth = 1.5;
      ctx.strokeRect(x(grid.start + cell.column * grid.width) - 0.5, cell.row * rowHeight, Math.max(4, wide + 1), rowHeight - 1);
    }
    if (drag) {
      ctx.fillStyle = themed("accent-soft");
      ctx.fillRect(Math.min(x(drag.from), x(drag.to)), 0, Math.abs(x(drag.to) - x(drag.from)), bottom);
    }
    // Which places are drawn, for who looks at the pixels.
    if (grid.start <= from) element.dataset.drawn = `${from} ${to}`;
  }, [grid, rows, limit, size.width, height, from, to, by, cursor, cell, drag, theme]);

  const cellAt = (event: PointerEvent): typeof cell => {
    const row = Math.floor(event.offsetY / rowHeight);
    return event.offsetX < labels || row >= rows.length ? null : { row, column: columnOf(grid, placeAt(event.offsetX)) };
  };
  const open = (at: NonNullable<typeof cell>) => {
    const i = furthest(grid, rows[at.row], at.column);
    props.onOpen(grid.names[i < 0 ? rows[at.row][0] : i], grid.start + at.column * grid.width);
  };
  const move = (dr: number, dc: number) => {
    const now = cell ?? { row: 0, column: columnOf(grid, cursor ?? from) };
    const row = Math.max(0, Math.min(rows.length - 1, now.row + dr));
    const column = Math.max(0, Math.min(grid.columns - 1, now.column + dc));
    setCell({ row, column });
    if (dc) props.onCursor(grid.start + column * grid.width);
  };
  return (
    <div class="map">
      <div class="map-host" ref={host}>
        <canvas
          ref={canvas}
          class="map-canvas ratio"
          style={{ height: `${height}px` }}
          tabIndex={0}
          role="img"
          data-labels={labels}
          data-row-height={rowHeight}
          aria-label={describe(props, grid, rows)}
          onPointerDown={(event) => {
            if (!cellAt(event)) return;
            (event.target as HTMLElement).setPointerCapture(event.pointerId);
            setDrag({ from: placeAt(event.offsetX), to: placeAt(event.offsetX) });
          }}
          onPointerMove={(event) => (drag ? setDrag({ ...drag, to: placeAt(event.offsetX) }) : setCell(cellAt(event)))}
          onPointerUp={(event) => {
            if (!drag) return;
            setDrag(null);
            const [a, b] = [drag.from, drag.to].sort((p, q) => p - q);
            const at = cellAt(event);
            if (x(b) - x(a) > 6) props.onRange(Math.max(from, Math.floor(a)), Math.min(to, Math.ceil(b)));
            else if (at) open(at);
          }}
          onPointerLeave={() => setCell(null)}
          onDblClick={props.onReset}
          onKeyDown={(event) => {
            const way: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
            if (way[event.key]) {
              event.preventDefault();
              event.stopPropagation();
              move(...way[event.key]);
            } else if (event.key === "Enter" && cell) open(cell);
          }}
        />
      </div>
      <p class="reading" aria-live="polite">
        {cell && rows[cell.row] ? (
          <Reading {...props} grid={grid} members={rows[cell.row]} column={cell.column} />
        ) : (
          <span class="legend">
            {shorten(props.names[1], 24)} larger, {timesText(-limit)}
            <i class="ramp both" />
            {timesText(limit)}, {shorten(props.names[0], 24)} larger
            {beyond > 0 && (
              <>
                <i class="swatch apart" /> beyond, up to {timesText(beyond)} either way
              </>
            )}
            <i class="swatch bad" /> NaN or Inf
            <i class="swatch none" /> not in both
          </span>
        )}
      </p>
    </div>
  );
}

/** The cell under the cursor: the least, the mean and the greatest of both runs, divided. */
function Reading({ grid, members, column, by }: Props & { members: number[]; column: number }) {
  const i = furthest(grid, members, column);
  const first = grid.start + column * grid.width;
  const where = `${by === "time" ? "" : "step "}${placeText(by, first)}${grid.width > 1 ? `–${placeText(by, first + grid.width - 1)}` : ""}`;
  if (i < 0) return <span>{where}: not recorded by both</span>;
  const at = i * grid.columns + column;
  return (
    <span>
      {members.length > 1 && <span class="soft">of {count(members.length)} </span>}
      <b>{plain(grid.names[i])}</b> {where} <em>{timesText(grid.mean[at])}</em>
      {grid.high[at] > grid.low[at] && (
        <span class="soft">
          {" "}
          of the means; from {timesText(grid.low[at])} to {timesText(grid.high[at])} of the least and the greatest
        </span>
      )}
      {grid.bad[at] > 0 && <strong class="bad"> NaN or Inf in {count(grid.bad[at])}</strong>}
    </span>
  );
}

function describe({ names, by, from, to }: Props, grid: Grid, rows: number[][]): string {
  let most = -1;
  let where = "";
  for (const members of rows)
    for (let j = 0; j < grid.columns; j++) {
      const i = furthest(grid, members, j);
      const value = i < 0 ? NaN : valueOf(grid, i * grid.columns + j);
      if (Math.abs(value) > most) {
        most = Math.abs(value);
        where = `; furthest apart, ${timesText(value)}, in ${plain(grid.names[i])} at ${placeText(by, grid.start + j * grid.width)}`;
      }
    }
  return `Map of ${plain(names[0])} divided by ${plain(names[1])}: ${rows.length} rows, ${placeText(by, from)} to ${placeText(by, to)}${where}. Arrow keys move, Enter shows the tensor.`;
}
