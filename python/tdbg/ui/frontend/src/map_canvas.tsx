/**
 * What maps share: rows of cells over places, with their names, an axis, a cursor, and what
 * pointer and keys do.  Which colours the cells have is up to who shows one.
 */
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { drawAxis, FONT, gutterOf, hatch, RIGHT, sharp } from "./canvas";
import { themed } from "./colors";
import { Crosshair, point } from "./crosshair";
import { shorten } from "./format";
import { coarsened, columnOf, type Grid } from "./grid";
import { useSize, useTheme } from "./hooks";
import { type Cell as Field, SaveCanvas } from "./saving";

const AXIS = 26;
const LEAST_ROW = 5;
const MOST_ROW = 22;
/** A row whose name can be read. */
export const READABLE_ROW = 13;

/** How many rows of a map there is room for, where nobody needs to read all names. */
export function mostRows(height: number, row = LEAST_ROW): number {
  return Math.floor((height - AXIS) / row);
}

/** Where a map lies on the screen, and what it shows there. */
export interface Frame {
  host: { current: HTMLDivElement | null };
  size: { width: number };
  /** So wide is the column of names; behind it begin the cells. */
  labels: number;
  width: number;
  /** In as many columns as there are pixels at most. */
  grid: Grid;
  from: number;
  to: number;
}

export function useFrame(given: Grid, from: number, end: number, gutter?: number): Frame {
  // A step that is announced, and whose cells are on their way, moves nothing yet.
  const to = Math.max(from + 1, Math.min(end, given.end));
  const [host, size] = useSize();
  const labels = gutter ?? gutterOf(size.width);
  const width = Math.max(1, size.width - labels - RIGHT);
  const grid = useMemo(() => {
    // As many columns in the window as it has pixels, however many lie outside of it.
    const share = (given.columns * given.width) / Math.max(1, to - from);
    return coarsened(given, Math.floor(width * Math.max(1, share)));
  }, [given, width, from, to]);
  return { host, size, labels, width, grid, from, to };
}

/** Where cells are drawn. */
export interface Plot {
  ctx: CanvasRenderingContext2D;
  /** Of a place the pixel. */
  x: (place: number) => number;
  /** How wide a column is. */
  columnWidth: number;
  rowHeight: number;
  /** The row at the top, and how many are seen. */
  offset: number;
  visible: number;
}

export interface Cell {
  row: number;
  column: number;
}

/** A name that the pointer is at, and what a click on it would do. */
export interface Named {
  row: number;
  unfolds: boolean;
}

/** What a row is called; *more* is not shortened. */
export interface Name {
  text: string;
  more?: string;
  left?: number;
  isAccused?: boolean;
}

interface Props {
  frame: Frame;
  class?: string;
  description: string;
  rows: number;
  mostHeight: number;
  leastRow?: number;
  cursor: number | undefined;
  /** Where keys begin, if there is no cursor. */
  home: number;
  /** Draw the cells; another function when they are others. */
  cells: (plot: Plot) => void;
  name: (row: number) => Name;
  /** What is drawn beside names takes so much of their room. */
  margin?: number;
  beside?: (plot: Plot) => void;
  place: (place: number) => string;
  /** The column whose cell is drawn at a column: that of the last recorded step, where cells stand for a while. */
  held?: (row: number, column: number) => number;
  /** Whether a click on a name, so far from the left, unfolds its branch or folds the one around it. */
  unfolds?: (row: number, px: number) => boolean;
  /** Do so, and say whether there are other rows now. */
  onName?: (name: Named) => boolean;
  onCursor: (place: number) => void;
  onOpen: (cell: Cell) => void;
  onRange: (from: number, to: number) => void;
  onReset: () => void;
  /** What is said below of what the pointer or the keys are at. */
  reading: (cell: Cell | null, named: Named | null) => ComponentChildren;
}

export function MapCanvas(props: Props) {
  const { cursor, rows, held = (_, column) => column } = props;
  const { host, size, labels, width, grid, from, to } = props.frame;
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useTheme();
  const [cell, setCell] = useState<Cell | null>(null);
  const [named, setNamed] = useState<Named | null>(null);
  const [top, setTop] = useState(0);
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);
  const rowHeight = Math.max(
    props.leastRow ?? LEAST_ROW,
    Math.min(MOST_ROW, mostRows(props.mostHeight, Math.max(1, rows))),
  );
  const height = Math.min(props.mostHeight, rows * rowHeight + AXIS);
  const visible = mostRows(height, rowHeight);
  const offset = Math.max(0, Math.min(top, rows - visible));
  const bottom = visible * rowHeight;
  const x = (place: number) => labels + ((place - from) / Math.max(1, to - from)) * width;
  const placeAt = (px: number) => from + ((px - labels) / width) * (to - from);

  useEffect(() => {
    const ctx = sharp(canvas.current!, size.width, height);
    if (!size.width || !rows) return;
    // Which places are drawn, for who looks at the pixels.
    if (grid.start <= from) canvas.current!.dataset.drawn = `${from} ${to}`;
    const columnWidth = (grid.width * width) / Math.max(1, to - from);
    const plot = { ctx, x, columnWidth, rowHeight, offset, visible };
    ctx.save();
    ctx.beginPath();
    ctx.rect(labels, 0, width, bottom);
    ctx.clip();
    ctx.fillStyle = themed("sunken");
    ctx.fillRect(labels, 0, width, bottom);
    hatch(ctx, labels, 0, width, bottom);
    props.cells(plot);
    ctx.restore();
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    const every = rowHeight >= 12 ? 1 : Math.ceil(16 / rowHeight);
    const longest = Math.floor((labels - 14 - (props.margin ?? 0)) / 6.1);
    for (let y = 0; y < visible && y + offset < rows; y += every) {
      const { text, more = "", left = 0, isAccused } = props.name(y + offset);
      const isAt = cell?.row === y + offset || named?.row === y + offset;
      ctx.fillStyle = themed(isAt ? "ink" : "ink-soft");
      if (isAccused) ctx.fillStyle = themed("error");
      ctx.fillText(
        shorten(text, longest - more.length) + more,
        left,
        Math.max(6, y * rowHeight + rowHeight / 2),
      );
    }
    props.beside?.(plot);
    drawAxis(ctx, [from, to], labels, width, bottom, props.place);
    if (cursor !== undefined && cursor >= from && cursor < to) {
      ctx.fillStyle = themed("ink");
      ctx.fillRect(x(cursor + 0.5) - 0.5, 0, 1, bottom);
    }
    if (cell) {
      ctx.strokeStyle = themed("ink");
      ctx.lineWidth = 1.5;
      const left = x(grid.start + held(cell.row, cell.column) * grid.width);
      ctx.strokeRect(
        left - 0.5,
        (cell.row - offset) * rowHeight,
        Math.max(4, columnWidth + 1),
        rowHeight - 1,
      );
    }
    if (drag) {
      ctx.fillStyle = themed("accent-soft");
      ctx.fillRect(
        Math.min(x(drag.from), x(drag.to)),
        0,
        Math.abs(x(drag.to) - x(drag.from)),
        bottom,
      );
    }
  }, [props.cells, size.width, height, offset, from, to, cursor, cell, named, drag, theme]);

  const rowAt = (event: PointerEvent) => {
    const row = Math.floor(event.offsetY / rowHeight);
    return row < visible && row + offset < rows ? row + offset : -1;
  };
  const cellAt = (event: PointerEvent): Cell | null => {
    const row = rowAt(event);
    return event.offsetX < labels || row < 0
      ? null
      : { row, column: columnOf(grid, placeAt(event.offsetX)) };
  };
  const nameAt = (event: PointerEvent): Named | null => {
    const row = rowAt(event);
    return !props.unfolds || event.offsetX >= labels || row < 0
      ? null
      : { row, unfolds: props.unfolds(row, event.offsetX) };
  };
  const choose = (name: Named) => props.onName?.(name) && setCell(null);
  const move = (dr: number, dc: number) => {
    const now = cell ?? { row: 0, column: columnOf(grid, cursor ?? props.home) };
    const row = Math.max(0, Math.min(rows - 1, now.row + dr));
    let column = Math.max(0, Math.min(grid.columns - 1, now.column + dc));
    while (dc && column > 0 && column < grid.columns - 1 && held(row, column) !== column)
      column += dc;
    setCell({ row, column });
    if (row < offset) setTop(row);
    else if (row >= offset + visible) setTop(row - visible + 1);
    if (dc) props.onCursor(grid.start + column * grid.width);
  };
  return (
    <div class="map">
      <div class="map-host" ref={host}>
        <canvas
          ref={canvas}
          class={`map-canvas ${props.class ?? ""}`}
          style={{ height: `${height}px` }}
          tabIndex={0}
          role="img"
          data-labels={labels}
          data-row-height={rowHeight}
          data-rows={rows}
          aria-label={props.description}
          onPointerDown={(event) => {
            const name = nameAt(event);
            if (name) choose(name);
            if (!cellAt(event)) return;
            (event.target as HTMLElement).setPointerCapture(event.pointerId);
            const at = placeAt(event.offsetX);
            setDrag({ from: at, to: at });
          }}
          onPointerMove={(event) => {
            if (drag) setDrag({ ...drag, to: placeAt(event.offsetX) });
            else {
              setCell(cellAt(event));
              setNamed(nameAt(event));
              point(event.offsetX < labels ? undefined : Math.floor(placeAt(event.offsetX)));
            }
          }}
          onPointerUp={(event) => {
            if (!drag) return;
            setDrag(null);
            const [a, b] = [drag.from, drag.to].sort((p, q) => p - q);
            const at = cellAt(event);
            if (x(b) - x(a) > 6)
              props.onRange(Math.max(from, Math.floor(a)), Math.min(to, Math.ceil(b)));
            else if (at) props.onOpen(at);
          }}
          onPointerLeave={() => {
            setCell(null);
            setNamed(null);
            point(undefined);
          }}
          onDblClick={props.onReset}
          onWheel={(event) => {
            if (rows <= visible || event.ctrlKey) return;
            event.preventDefault();
            setTop(Math.max(0, Math.min(rows - visible, offset + Math.sign(event.deltaY) * 3)));
          }}
          onKeyDown={(event) => {
            const by: Record<string, [number, number]> = {
              ArrowUp: [-1, 0],
              ArrowDown: [1, 0],
              ArrowLeft: [0, -1],
              ArrowRight: [0, 1],
            };
            if (by[event.key]) {
              event.preventDefault();
              event.stopPropagation();
              move(...by[event.key]);
            } else if (!cell) return;
            else if (event.key === "Enter") props.onOpen(cell);
            else if (event.key === "+" || event.key === "-")
              choose({ row: cell.row, unfolds: event.key === "+" });
          }}
        />
        <Crosshair from={from} to={to} left={labels} width={width} />
        <SaveCanvas title="map" canvas={canvas} table={() => tableOf(grid)} />
      </div>
      <p class="reading" aria-live="polite">
        {props.reading(
          cell && cell.row < rows ? cell : null,
          named && named.row < rows ? named : null,
        )}
      </p>
    </div>
  );
}

/** What each cell that has rows covers: its least, mean and greatest. */
function tableOf(grid: Grid): Field[][] {
  const head = ["name", "from", "to", "low", "mean", "high", "rows", "not_finite"];
  const found: Field[][] = [head];
  grid.names.forEach((name, i) => {
    for (let j = 0; j < grid.columns; j++) {
      const at = i * grid.columns + j;
      if (!grid.rows[at]) continue;
      const start = grid.start + j * grid.width;
      const numbers = [grid.low[at], grid.mean[at], grid.high[at], grid.rows[at], grid.bad[at]];
      found.push([name, start, start + grid.width, ...numbers]);
    }
  });
  return found;
}
