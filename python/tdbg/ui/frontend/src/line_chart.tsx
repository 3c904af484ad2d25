/** Lines over steps with what lies below and above them: never a sample. */
import { useEffect, useMemo, useRef } from "preact/hooks";
import uPlot from "uplot";
import { gutterOf, hatch, RIGHT, ticks } from "./canvas";
import { BAD, faded, themed } from "./colors";
import { Crosshair, point } from "./crosshair";
import { count, number, plain, steps as stepsText, tickText } from "./format";
import { columnOf, type Grid, gapsOf, lastWithRows, type ValueAxis } from "./grid";
import { useSize, useTheme } from "./hooks";
import { SaveButton } from "./saving";

export interface Line {
  label: string;
  color: string;
  grid: Grid;
  /** What another line is made of: it stays behind that. */
  isFaint?: boolean;
  /** One of so many that their bands would hide each other. */
  isMany?: boolean;
}

export interface Limit {
  value: number;
  label: string;
}

interface Props {
  lines: Line[];
  /** Why there are none. */
  error?: Error | null;
  title: string;
  from: number;
  to: number;
  log: boolean;
  height: number;
  /** How a place on the axis is called; a step by its number. */
  place?: (place: number) => string;
  cursor?: number | undefined;
  flags?: { from: number; to: number; color: string }[];
  /** Values beyond which something is wrong: lines across the chart, always on its axis. */
  limits?: Limit[];
  /** A value that is always on the axis. */
  least?: number;
  /** For how many steps a record stands: longer stretches without one are hatched. */
  interval?: number | null;
  /** Room for the values, where it is not that of all charts. */
  gutter?: number;
  onRange?: (from: number, to: number) => void;
  onCursor?: (step: number | undefined) => void;
  onReset?: () => void;
}

const STRIP = 8;
const FOOT = 5;
const FONT = "11px system-ui, sans-serif";
const LABEL_HEIGHT = 26;
/** Narrower stretches without a record are not hatched: the rug shows them. */
const LEAST_GAP = 4;
/** Lines that the crosshair reads. */
const MOST_READ = 6;

/** Columns of all lines on one axis: uPlot's data, low, high and mean of each. */
function aligned(
  lines: Line[],
  log: boolean,
): { data: uPlot.AlignedData; bad: { x: number; width: number; n: number }[] } {
  // A column stands where its middle is.
  const xs = new Set<number>();
  const bad: { x: number; width: number; n: number }[] = [];
  for (const { grid } of lines)
    for (let j = 0; j < grid.columns; j++)
      if (grid.rows[j]) {
        xs.add(grid.start + (j + 0.5) * grid.width);
        if (grid.bad[j])
          bad.push({ x: grid.start + j * grid.width, width: grid.width, n: grid.bad[j] });
      }
  const sorted = [...xs].sort((a, b) => a - b);
  const place = new Map(sorted.map((x, i) => [x, i]));
  const data: (number | null | undefined)[][] = [sorted];
  for (const { grid } of lines) {
    const columns: (number | null | undefined)[][] = [0, 1, 2].map(() =>
      new Array(sorted.length).fill(undefined),
    );
    for (let j = 0; j < grid.columns; j++) {
      const at = place.get(grid.start + (j + 0.5) * grid.width);
      if (at === undefined || !grid.rows[j]) continue;
      [grid.low, grid.high, grid.mean].forEach((values, k) => {
        const value = values[j];
        columns[k][at] = Number.isNaN(value) || (log && value <= 0) ? null : value;
      });
    }
    data.push(...columns);
  }
  return { data: data as uPlot.AlignedData, bad };
}

export function LineChart(props: Props) {
  const { lines, log, from, to, height } = props;
  const [ref, size] = useSize();
  const theme = useTheme();
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const { data, bad } = useMemo(() => aligned(lines, log), [lines, log]);
  const gaps = useMemo(
    () =>
      props.interval && lines.length
        ? gapsOf(
            lines.map((line) => line.grid),
            props.interval,
          )
        : [],
    [lines, props.interval],
  );
  const left = props.gutter ?? gutterOf(size.width);
  const width = Math.max(1, size.width - left - RIGHT);
  const isEmpty = !data[0].length;
  // Where nothing is a number, there are no numbers to write at the axis either.
  const hasNumbers = useMemo(
    () => lines.some(({ grid }) => grid.low.some((low, j) => grid.rows[j] && !Number.isNaN(low))),
    [lines],
  );
  const held = useRef({ bad, gaps, hasNumbers });
  held.current = { bad, gaps, hasNumbers };
  const shown = lines.map((line) => `${line.label}${line.color}`).join("\n");

  useEffect(() => {
    if (!size.width || isEmpty) return;
    const host = ref.current!;
    const ink = themed("ink-soft");
    const rule = themed("rule");
    const made = new uPlot(
      {
        width: size.width,
        height,
        padding: [STRIP + 6, RIGHT, 0, 0],
        legend: { show: false },
        scales: {
          x: {
            time: false,
            range: () => [
              latest.current.from,
              Math.max(latest.current.from + 1, latest.current.to),
            ],
          },
          y: {
            distr: log ? 3 : 1,
            range: (_, low, high) => extent(low, high, log, latest.current),
          },
        },
        axes: [
          {
            stroke: ink,
            font: FONT,
            grid: { show: false },
            ticks: { stroke: rule, size: 4 },
            size: 26,
            gap: 3,
            // A step has its number in the middle of its width.
            splits: (_, __, from, to) => ticks(from, to, width).map((tick) => tick + 0.5),
            values: (_, places) =>
              places.map((place) => (latest.current.place ?? count)(place - 0.5)),
          },
          {
            stroke: ink,
            font: FONT,
            splits: log ? (_, __, low, high) => decades(low, high) : undefined,
            filter: (u, ticks) => (log ? spaced(ticks, u.bbox.height / devicePixelRatio) : ticks),
            grid: { stroke: rule, width: 1 },
            ticks: { show: false },
            size: left,
            gap: 6,
            values: (_, ticks) =>
              ticks.map((t) => (t === null || !held.current.hasNumbers ? "" : tickText(t))),
          },
        ],
        series: [
          {},
          ...lines.flatMap((line): uPlot.Series[] => [
            { stroke: "transparent", points: { show: false }, spanGaps: false },
            { stroke: "transparent", points: { show: false }, spanGaps: false },
            {
              stroke: line.isFaint ? faded(line.color, 0.28) : line.color,
              width: line.isFaint || line.isMany ? 1.1 : 1.75,
              points: { size: 4, fill: line.color },
              spanGaps: false,
            },
          ]),
        ],
        bands: lines.map((line, i) => ({
          series: [3 * i + 2, 3 * i + 1] as [number, number],
          fill: faded(line.color, line.isFaint || line.isMany ? 0.08 : 0.25),
        })),
        cursor: {
          y: false,
          points: { size: 7 },
          drag: { x: true, y: false, setScale: false },
          focus: { prox: 30 },
        },
        hooks: {
          drawClear: [
            (u) => {
              drawGaps(u, held.current.gaps);
              drawFlags(u, latest.current.flags ?? []);
            },
          ],
          setCursor: [
            ({ cursor }) =>
              point(
                (cursor.left ?? -1) < 0 ? undefined : Math.floor(made.posToVal(cursor.left!, "x")),
              ),
          ],
          draw: [
            (u) => {
              drawExtremes(u, latest.current.lines);
              if (log) drawBelow(u, latest.current.lines);
              drawLimits(u, latest.current.limits, log);
              drawBad(u, held.current.bad);
              if (held.current.gaps.length) drawRug(u);
              drawCursor(u, latest.current.cursor);
              mark(host, latest.current);
            },
          ],
          setSelect: [
            (u) => {
              if (u.select.width < 4) return;
              const left = Math.floor(u.posToVal(u.select.left, "x"));
              const right = Math.ceil(u.posToVal(u.select.left + u.select.width, "x"));
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              latest.current.onRange?.(Math.max(0, left), Math.max(left + 1, right + 1));
            },
          ],
        },
      },
      data,
      host,
    );
    plot.current = made;
    const over = made.over;
    const half = (latest.current.lines[0]?.grid.width ?? 1) / 2;
    const firstOf = (middle: number) => Math.floor(middle - half + 0.5);
    const click = (event: MouseEvent) => {
      const rect = over.getBoundingClientRect();
      const at = data[0].length ? made.posToIdx(event.clientX - rect.left) : -1;
      if (at >= 0) latest.current.onCursor?.(firstOf(data[0][at]));
    };
    const reset = () => latest.current.onReset?.();
    const wheel = (event: WheelEvent) => {
      if (!latest.current.onRange || !event.ctrlKey) return;
      event.preventDefault();
      const rect = over.getBoundingClientRect();
      const middle = made.posToVal(event.clientX - rect.left, "x");
      const factor = event.deltaY > 0 ? 1.4 : 1 / 1.4;
      const { from: a, to: b } = latest.current;
      latest.current.onRange(
        Math.max(0, Math.round(middle - (middle - a) * factor)),
        Math.round(middle + Math.max(2, (b - middle) * factor)),
      );
    };
    over.addEventListener("click", click);
    over.addEventListener("dblclick", reset);
    over.addEventListener("wheel", wheel, { passive: false });
    return () => {
      plot.current = null;
      made.destroy();
    };
  }, [size.width, height, log, theme, shown, left, isEmpty]);

  useEffect(() => plot.current?.setData(data, true), [data, from, to, props.limits, gaps]);
  useEffect(() => plot.current?.redraw(false), [props.cursor, props.flags]);

  return (
    <div class="chart-host">
      <div
        class="chart"
        ref={ref}
        role="img"
        aria-label={sentence(props)}
        style={{ height: `${height}px` }}
        data-chart={props.title}
      />
      {!isEmpty && (
        <SaveButton
          title={props.title}
          drawing={() => ({
            kind: "lines",
            place: count,
            ...latest.current,
          })}
        />
      )}
      {isEmpty ? (
        <p class={`chart-empty ${props.error ? "bad" : "soft"}`}>{stateOf(props)}</p>
      ) : (
        <Crosshair
          from={from}
          to={to}
          left={left}
          width={width}
          read={(place) => readingAt(latest.current, place)}
        />
      )}
    </div>
  );
}

/** What stands where a chart has no line: never an axis that nobody measured. */
function stateOf({ lines, error }: Props): string {
  if (error) return plain(error.message);
  return lines.length ? "Nothing was recorded in these steps." : "reading …";
}

/** What each line has at a place, or had last. */
function readingAt({ lines, place = count }: Props, at: number): string {
  const read = lines.filter((line) => !line.isFaint).slice(-MOST_READ);
  const found = read.map(({ label, grid }) => {
    const j = lastWithRows(grid, 0, columnOf(grid, at));
    return j < 0 ? "" : `${lines.length > 1 ? `${label} ` : ""}${number(grid.mean[j])}`;
  });
  return [place(at), ...found.filter(Boolean)].join(" · ");
}

/** Say which steps are drawn, for who looks at the pixels. */
function mark(host: HTMLElement, { lines, from, to, limits }: Props): void {
  if (!lines.length) return;
  host.dataset.limits = limits?.map((each) => each.label).join("; ") ?? "";
  host.dataset.drawn = `${from} ${to}`;
}

/** Ticks of a logarithmic axis: powers of ten, and where there are not two of them, what lies between.  uPlot's own never end where one end is no power. */
function decades(low: number, high: number): number[] {
  const multiples = (n: number) => {
    const found: number[] = [];
    for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10)
      for (let i = 1; i <= n; i++) if (i * power >= low && i * power <= high) found.push(i * power);
    return found;
  };
  const powers = multiples(1);
  return powers.length > 1 ? powers : multiples(9);
}

/** Of labels so many as a chart of that height has room for. */
function spaced(ticks: number[], height: number): (number | null)[] {
  const every = Math.ceil(ticks.length / Math.max(2, height / LABEL_HEIGHT));
  return ticks.map((tick, i) => (i % every ? null : tick));
}

function extent(
  low: number,
  high: number,
  log: boolean,
  { limits = [], least = low }: Props,
): [number, number] {
  if (low === null || high === null || !Number.isFinite(low)) return log ? [0.1, 1] : [0, 1];
  low = Math.min(low, least);
  for (const { value } of limits)
    if (!log || value > 0) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  if (log) return [low / 1.3, high * 1.3];
  if (low === high) return [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  const pad = (high - low) * 0.06;
  return [low >= 0 && low - pad < 0 ? 0 : low - pad, high + pad];
}

/** A column of one pixel still shows its extremes: a vertical line from low to high. */
function drawExtremes(u: uPlot, lines: Line[]): void {
  const { ctx } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  ctx.clip();
  ctx.lineWidth = Math.max(1, devicePixelRatio);
  const floor = u.bbox.top + u.bbox.height;
  for (const { grid, color, isFaint, isMany } of lines) {
    ctx.strokeStyle = faded(color, isFaint || isMany ? 0.25 : 0.7);
    ctx.beginPath();
    for (let j = 0; j < grid.columns; j++) {
      if (grid.rows[j] < 2 || Number.isNaN(grid.low[j])) continue;
      const x = u.valToPos(grid.start + (j + 0.5) * grid.width, "x", true);
      const top = u.valToPos(grid.high[j], "y", true);
      const bottom = u.valToPos(grid.low[j], "y", true);
      ctx.moveTo(x, Number.isFinite(top) ? top : floor);
      ctx.lineTo(x, Number.isFinite(bottom) ? bottom : floor);
    }
    ctx.stroke();
  }
  ctx.restore();
}

/** What a logarithmic axis has no place for stands at its foot. */
function drawBelow(u: uPlot, lines: Line[]): void {
  const { ctx, bbox } = u;
  const height = FOOT * devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const { grid, color } of lines) {
    ctx.fillStyle = color;
    for (let j = 0; j < grid.columns; j++) {
      if (!grid.rows[j] || !(grid.low[j] <= 0)) continue;
      const left = u.valToPos(grid.start + j * grid.width, "x", true);
      const right = u.valToPos(grid.start + (j + 1) * grid.width, "x", true);
      ctx.fillRect(
        left,
        bbox.top + bbox.height - height,
        Math.max(3 * devicePixelRatio, right - left),
        height,
      );
    }
  }
  ctx.restore();
}

/** Why the axis is logarithmic, and what it has no place for. */
export function AxisNote({ axis, lines }: { axis: ValueAxis; lines: Line[] }) {
  if (!axis.isLog || !lines.length) return null;
  return (
    <span class="soft">
      {axis.why && ` · logarithmic axis: ${axis.why}`}
      {hasBelow(lines) && " · at the bottom: zero or below"}
    </span>
  );
}

/** Whether some values have no place on a logarithmic axis. */
function hasBelow(lines: Line[]): boolean {
  return lines.some(({ grid }) => grid.low.some((low, j) => grid.rows[j] > 0 && low <= 0));
}

function drawLimits(u: uPlot, limits: Limit[] = [], log: boolean): void {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = themed("error");
  ctx.lineWidth = 1.5 * ratio;
  ctx.setLineDash([7 * ratio, 4 * ratio]);
  ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  for (const { value, label } of limits) {
    if (log && value <= 0) continue;
    const y = Math.round(u.valToPos(value, "y", true));
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    // Below the line where there is no room above it.
    ctx.textBaseline = y - bbox.top > 18 * ratio ? "bottom" : "top";
    ctx.fillText(label, bbox.left + 6 * ratio, y + (y - bbox.top > 18 * ratio ? -3 : 4) * ratio);
  }
  ctx.restore();
}

/** What is no number has a strip of its own, and never empties the axis. */
function drawBad(u: uPlot, bad: { x: number; width: number }[]): void {
  const { ctx } = u;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.fillStyle = BAD;
  for (const { x, width } of bad) {
    const left = u.valToPos(x, "x", true);
    const right = u.valToPos(x + width, "x", true);
    if (right < u.bbox.left || left > u.bbox.left + u.bbox.width + 1) continue;
    ctx.fillRect(
      left,
      u.bbox.top - (STRIP + 3) * ratio,
      Math.max(3 * ratio, right - left),
      STRIP * ratio,
    );
  }
  ctx.restore();
}

function drawGaps(u: uPlot, gaps: [number, number][]): void {
  const ratio = devicePixelRatio;
  for (const [first, end] of gaps) {
    const left = Math.max(u.bbox.left, u.valToPos(first, "x", true));
    const right = Math.min(u.bbox.left + u.bbox.width, u.valToPos(end, "x", true));
    if (right - left >= LEAST_GAP * ratio)
      hatch(u.ctx, left, u.bbox.top, right - left, u.bbox.height, 7 * ratio);
  }
}

/** A stroke at the foot for each column that has a record. */
function drawRug(u: uPlot): void {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.fillStyle = themed("ink-soft");
  for (const x of u.data[0]) {
    const at = u.valToPos(x, "x", true);
    if (at >= bbox.left && at <= bbox.left + bbox.width)
      ctx.fillRect(at - ratio / 2, bbox.top + bbox.height - 6 * ratio, ratio, 6 * ratio);
  }
  ctx.restore();
}

function drawFlags(u: uPlot, flags: { from: number; to: number; color: string }[]): void {
  const { ctx } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  ctx.clip();
  for (const flag of flags) {
    const left = u.valToPos(flag.from, "x", true);
    const right = Math.max(left + 2 * devicePixelRatio, u.valToPos(flag.to, "x", true));
    ctx.fillStyle = faded(flag.color, 0.1);
    ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
    ctx.fillStyle = flag.color;
    ctx.fillRect(left, u.bbox.top, 1.5 * devicePixelRatio, u.bbox.height);
  }
  ctx.restore();
}

function drawCursor(u: uPlot, step: number | undefined): void {
  if (step === undefined) return;
  const x = u.valToPos(step + 0.5, "x", true);
  if (x < u.bbox.left - 1 || x > u.bbox.left + u.bbox.width + 1) return;
  u.ctx.save();
  u.ctx.fillStyle = themed("ink-soft");
  u.ctx.fillRect(x - 0.5, u.bbox.top, Math.max(1, devicePixelRatio), u.bbox.height);
  u.ctx.restore();
}

function sentence({ lines, title, from, to, limits }: Props): string {
  const parts = lines.map(({ label, grid }) => {
    let low = Infinity;
    let high = -Infinity;
    let bad = 0;
    let last = NaN;
    for (let j = 0; j < grid.columns; j++) {
      if (!grid.rows[j]) continue;
      bad += grid.bad[j];
      if (Number.isNaN(grid.low[j])) continue;
      low = Math.min(low, grid.low[j]);
      high = Math.max(high, grid.high[j]);
      last = grid.mean[j];
    }
    const what = Number.isNaN(last)
      ? "no numbers"
      : `from ${number(low)} to ${number(high)}, last ${number(last)}`;
    return `${label}: ${what}${bad ? `, ${count(bad)} rows not finite` : ""}`;
  });
  return `${title}, ${stepsText(from, Math.max(from, to - 1))}. ${[...parts, ...(limits ?? []).map((each) => each.label)].join("; ")}`;
}
