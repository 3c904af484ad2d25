/** How many times as large the tensors of one run are: layer by place, a colour for each side. */
import { useMemo } from "preact/hooks";
import { BAD, isDark } from "../colors";
import { count, plain, shorten } from "../format";
import {
  coarsened,
  filledColumns,
  type Grid,
  grouped,
  placesOf,
  standing,
  usualDistance,
} from "../grid";
import { useTheme } from "../hooks";
import { EXTENT_COLUMNS, shareWithin } from "../layer_map";
import { MapCanvas, mostRows, type Plot, useFrame } from "../map_canvas";
import { type By, placeText, timesText } from "./alignment";

interface Props {
  /** Binary logarithms: low, high and mean. */
  grid: Grid;
  /** The same over all places. */
  whole: Grid;
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

const MOST_HEIGHT = 480;
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
function boundOf(grid: Grid, at: number): number {
  return -grid.low[at] > grid.high[at] ? grid.low[at] : grid.high[at];
}

export function RatioMap(props: Props) {
  const { by, order } = props;
  const frame = useFrame(props.grid, props.from, props.to);
  const { grid } = frame;
  const shown = { ...props, to: frame.to };
  const theme = useTheme();
  // All layers at once: neighbours share a row, which shows the one furthest from 1.
  const rows = useMemo(() => grouped(placesOf(grid, order), mostRows(MOST_HEIGHT)), [grid, order]);
  const { limit, beyond } = useMemo(() => {
    const all = coarsened(props.whole, EXTENT_COLUMNS);
    const found: number[] = [];
    let greatest = 0;
    for (const members of grouped(placesOf(all, order), mostRows(MOST_HEIGHT)))
      for (let j = 0; j < all.columns; j++) {
        const i = furthest(all, members, j);
        const value = i < 0 ? NaN : Math.abs(boundOf(all, i * all.columns + j));
        if (value < 40) found.push(value);
        if (value > greatest) greatest = value;
      }
    found.sort((a, b) => a - b);
    // At least as far as twice and half as large.
    const limit = Math.max(1, found[Math.floor(found.length * shareWithin(all))] ?? 1);
    return { limit, beyond: greatest > limit * BEYOND ? greatest : 0 };
  }, [props.whole, order]);

  const cells = useMemo(
    () =>
      ({ ctx, x, columnWidth, rowHeight }: Plot) => {
        const middle = isDark() ? [44, 50, 60] : [247, 247, 247];
        const apart = isDark() ? BEYOND_DARK : BEYOND_LIGHT;
        const filled = filledColumns(grid);
        const columns: number[] = [];
        standing(filled, grid.columns, usualDistance(filled)).forEach((n, k) => {
          columns[filled[k]] = n;
        });
        const colorOf = (value: number, isApart: boolean) => {
          const side = value > 0 ? 1 : 0;
          if (isApart) return apart[side];
          const share = Math.min(1, Math.abs(value) / limit);
          return `rgb(${middle.map((m, k) => Math.round(m + (ENDS[side][k] - m) * share)).join()})`;
        };
        const draw = (at: number, j: number, y: number) => {
          const value = boundOf(grid, at);
          if (Number.isNaN(value) && !grid.bad[at]) return;
          const isApart = Math.abs(value) > limit * BEYOND;
          ctx.fillStyle = grid.bad[at] ? BAD : colorOf(value, isApart);
          ctx.fillRect(
            Math.floor(x(grid.start + j * grid.width)),
            y * rowHeight,
            Math.max(grid.bad[at] || isApart ? 3 : 1, Math.ceil(columnWidth * columns[j])),
            rowHeight > 9 ? rowHeight - 1 : rowHeight,
          );
        };
        rows.forEach((members, y) => {
          for (let j = 0; j < grid.columns; j++) {
            const i = furthest(grid, members, j);
            if (i >= 0) draw(i * grid.columns + j, j, y);
          }
        });
      },
    [grid, rows, limit, theme],
  );

  return (
    <MapCanvas
      {...props}
      class="ratio"
      frame={frame}
      description={describe(shown, grid, rows)}
      rows={rows.length}
      mostHeight={MOST_HEIGHT}
      home={frame.from}
      cells={cells}
      name={(row) => ({
        text: props.label(grid.names[rows[row][0]]),
        more: rows[row].length > 1 ? ` +${rows[row].length - 1}` : "",
      })}
      place={(place) => placeText(by, place)}
      onOpen={({ row, column }) => {
        const i = furthest(grid, rows[row], column);
        props.onOpen(grid.names[i < 0 ? rows[row][0] : i], grid.start + column * grid.width);
      }}
      reading={(cell) =>
        cell ? (
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
        )
      }
    />
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
          of the means; from {timesText(grid.low[at])} to {timesText(grid.high[at])} of the least
          and the greatest
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
      const value = i < 0 ? NaN : boundOf(grid, i * grid.columns + j);
      if (Math.abs(value) > most) {
        most = Math.abs(value);
        where = `; furthest apart, ${timesText(value)}, in ${plain(grid.names[i])} at ${placeText(by, grid.start + j * grid.width)}`;
      }
    }
  return `Map of ${plain(names[0])} divided by ${plain(names[1])}: ${rows.length} rows, ${placeText(by, from)} to ${placeText(by, to)}${where}. Arrow keys move, Enter shows the tensor.`;
}
