/** The band that the healthy runs stay in, and which layer of which run left it, and when. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { getArrays, type Packed } from "../api";
import { drawAxis, gutterOf, RIGHT } from "../canvas";
import { BAD, isDark, themed } from "../colors";
import { type By, placeText } from "../compare/alignment";
import { Crosshair, point } from "../crosshair";
import { count, counted, number, plain, shorten } from "../format";
import { axisOf, type Grid } from "../grid";
import { adjust, type Route, setCursor, useAnswer, useSize, useTheme } from "../hooks";
import { AxisNote, type Line, LineChart } from "../line_chart";
import { Card, Chips, Link, Notice, Pending, Select } from "../parts";
import { cursorOf, type Range } from "../run_data";
import { type Cell, SaveCanvas } from "../saving";
import type { ListedRun } from "../types";
import { ByChips, byOf, rangeOfRuns } from "./charts";
import { isHealthy } from "./filter";

const COLUMNS = 256;
const ROLES = ["gradient", "weight", "update", "output"] as const;
const FIELDS = ["rms", "l2", "abs_max", "std"] as const;
const ROW = 15;
const AXIS_HEIGHT = 26;
const MOST_LISTED = 6;
/** Beyond so many scales the colour stays the same. */
const FURTHEST_COLOR = 20;

interface Departure {
  name: string;
  place: number;
  until: number | null;
  deviation: number;
}

interface Herd {
  of: string;
  names: string[];
  furthest: number;
  runs: { id: string; left: number; visits: number; first: number | null }[];
  departures: Departure[];
  edges: Float64Array;
  /** By name and column. */
  deviation: Float32Array;
  low: Float32Array;
  center: Float32Array;
  high: Float32Array;
  value: Float32Array;
}

function herdOf({ header, arrays }: Packed): Herd {
  return { ...header, ...arrays } as unknown as Herd;
}

export function HerdView({ runs, route }: { runs: ListedRun[]; route: Route }) {
  const by = byOf(route);
  const range = rangeOfRuns(runs, by, route);
  const role = route.role ?? "gradient";
  const field = route.field ?? "rms";
  const healthy = runs.filter(isHealthy).map((run) => run.id);
  const params = {
    run: runs.map((run) => run.id),
    healthy,
    of: route.of && runs.some((run) => run.id === route.of) ? route.of : undefined,
    role,
    field,
    by,
    start: range.from,
    stop: range.to,
    columns: COLUMNS,
  };
  const key = runs.length ? JSON.stringify(params) : "";
  const { data, error } = useAnswer<Herd>(key, 0, async (signal) =>
    herdOf(await getArrays("herd", params, signal)),
  );
  return (
    <>
      <div class="run-tools">
        <Chips
          label="Tensors"
          options={ROLES}
          value={role as "gradient"}
          names={{ gradient: "gradients", weight: "weights", update: "updates", output: "outputs" }}
          onChange={(value) =>
            adjust({ role: value === "gradient" ? undefined : value, tensor: undefined })
          }
        />
        <Chips
          label="Statistic"
          options={FIELDS}
          value={field as "rms"}
          onChange={(value) => adjust({ field: value === "rms" ? undefined : value })}
        />
        <ByChips by={by} />
        {!range.isWhole && (
          <button type="button" class="small" onClick={range.reset}>
            Show all of {placeText(by, range.whole.to)}
          </button>
        )}
      </div>
      {data && !error ? (
        <Shown
          herd={data}
          runs={runs}
          healthy={healthy.length}
          by={by}
          range={range}
          route={route}
        />
      ) : (
        <Missing error={error} runs={runs} healthy={healthy.length} />
      )}
    </>
  );
}

/** Why there is no band. */
function Missing({
  error,
  runs,
  healthy,
}: {
  error: Error | null;
  runs: ListedRun[];
  healthy: number;
}) {
  if (!error) return <Pending />;
  return (
    <Notice title="No band can be drawn" tone="info">
      <p>{plain(error.message)}.</p>
      <p class="soft">
        {counted(healthy, "run")} of {count(runs.length)} count as healthy: no rule warns of them,
        and they were not killed. A run that nobody has judged counts as healthy, too.
      </p>
    </Notice>
  );
}

interface ShownProps {
  herd: Herd;
  runs: ListedRun[];
  healthy: number;
  by: By;
  range: Range;
  route: Route;
}

function Shown({ herd, runs, healthy, by, range, route }: ShownProps) {
  const run = runs.find((each) => each.id === herd.of) ?? runs[0];
  const told = new Map(herd.runs.map((each) => [each.id, each]));
  const names = Object.fromEntries(
    runs.map((each) => {
      const { left, visits, first } = told.get(each.id) ?? { left: 0, visits: 0, first: null };
      const what =
        left || visits
          ? `${left + visits} left, first at ${placeText(by, first ?? 0)}`
          : "in the herd";
      return [each.id, `${shorten(each.name, 40)}: ${what}`];
    }),
  );
  const ordered = [...runs].sort(
    (a, b) =>
      (told.get(b.id)?.left ?? 0) - (told.get(a.id)?.left ?? 0) ||
      (told.get(b.id)?.visits ?? 0) - (told.get(a.id)?.visits ?? 0),
  );
  const first = herd.departures[0];
  const tensor = herd.names.includes(route.tensor ?? "")
    ? route.tensor!
    : (first?.name ?? herd.names[0]);
  return (
    <>
      <section class={`verdict ${first ? "error" : "ok"} herd-verdict`} aria-label="Herd">
        <div>
          <h2>
            {first
              ? `${plain(first.name)} left the herd at ${by === "step" ? "step " : ""}${placeText(by, first.place)}`
              : "No tensor of this run left the herd"}
          </h2>
          <p class="measured">
            <Link to={{ run: run.id }}>{shorten(run.name, 60)}</Link>:{" "}
            {whatLeft(herd, run.id, told)}. The herd is {counted(healthy, "healthy run")}; a tensor
            has left where it lies more than {herd.furthest} robust standard deviations from their
            median for three columns, or is not finite.
          </p>
          <ol class="departures">
            {herd.departures.slice(0, MOST_LISTED).map((each) => (
              <li key={each.name}>
                <button
                  type="button"
                  class="plain"
                  onClick={() => adjust({ tensor: each.name, at: String(each.place) })}
                >
                  {shorten(each.name, 50)}
                </button>{" "}
                <span class="soft">{departureText(each, by)}</span>
              </li>
            ))}
          </ol>
        </div>
        <Select
          label="Which run"
          options={ordered.map((each) => each.id)}
          names={names}
          value={run.id}
          onChange={(id) => adjust({ of: id, tensor: undefined })}
        />
      </section>
      <Card title="Every layer, against the herd" aside={<DeviationKey />}>
        <DeviationMap
          herd={herd}
          by={by}
          range={range}
          cursor={cursorOf(route)}
          chosen={tensor}
          title={`${run.name} against the herd`}
        />
      </Card>
      <BandChart herd={herd} run={run} tensor={tensor} by={by} range={range} route={route} />
    </>
  );
}

function whatLeft(herd: Herd, id: string, told: Map<string, Herd["runs"][number]>): string {
  const { left, visits } = told.get(id)!;
  const of = `of ${counted(herd.names.length, "tensor")}`;
  const parts = [
    left > 0 && `${count(left)} ${of} left and did not come back`,
    visits > 0 && `${count(visits)} ${left ? "" : `${of} `}left and came back`,
  ];
  return parts.filter(Boolean).join(", ") || `all ${counted(herd.names.length, "tensor")} stayed`;
}

function departureText({ place, until, deviation }: Departure, by: By): string {
  const size =
    Math.abs(deviation) >= 99 ? "far" : `${number(Math.abs(Math.round(deviation)))} deviations`;
  const side = deviation > 0 ? "above" : "below";
  const back = until === null ? "" : `, back at ${placeText(by, until)}`;
  return `at ${placeText(by, place)}, ${size} ${side}${back}`;
}

// --- The map -----------------------------------------------------------------------

function DeviationKey() {
  return (
    <p class="legend">
      below <span class="ramp both" /> above the herd
      <span class="swatch bad" /> not finite
      <span class="swatch none" /> not judged
    </p>
  );
}

const BELOW: [number, number, number] = [0, 114, 178];
const ABOVE: [number, number, number] = [213, 94, 0];

/** Grey within the band; then the more colour, the further. */
function colorOf(deviation: number, furthest: number): string {
  const [dark, calm] = [isDark(), isDark() ? [44, 50, 60] : [238, 240, 244]];
  const size = Math.abs(deviation);
  const end = deviation < 0 ? BELOW : ABOVE;
  const share =
    size <= furthest
      ? (0.25 * size) / furthest
      : 0.45 + 0.55 * Math.min(1, Math.log(size / furthest) / Math.log(FURTHEST_COLOR / furthest));
  const lift = dark ? 20 : 0;
  return `rgb(${calm.map((c, i) => Math.round(c + (Math.min(255, end[i] + lift) - c) * share)).join()})`;
}

interface MapProps {
  herd: Herd;
  by: By;
  range: Range;
  cursor: number | undefined;
  chosen: string;
  title: string;
}

function DeviationMap({ herd, by, range, cursor, chosen, title }: MapProps) {
  const [host, size] = useSize();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useTheme();
  const [over, setOver] = useState<{ row: number; column: number } | null>(null);
  const n = herd.names.length;
  const columns = herd.edges.length - 1;
  const left = gutterOf(size.width);
  const width = Math.max(1, size.width - left - RIGHT);
  const row = n > 60 ? Math.max(5, Math.floor(900 / n)) : ROW;
  const height = n * row + AXIS_HEIGHT;
  useEffect(() => {
    if (!size.width) return;
    drawMap(canvas.current!, herd, { left, width, row, height, chosen, by, range, cursor });
  }, [herd, size.width, theme, chosen, by, range.from, range.to, cursor]);
  const at = (event: PointerEvent | MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left - left) / width) * columns);
    const line = Math.floor((event.clientY - box.top) / row);
    if (column < 0 || column >= columns || line < 0 || line >= n) return null;
    return { row: line, column };
  };
  const move = (dy: number, dx: number) => {
    const now = over ?? { row: Math.max(0, herd.names.indexOf(chosen)), column: 0 };
    const next = {
      row: Math.max(0, Math.min(n - 1, now.row + dy)),
      column: Math.max(0, Math.min(columns - 1, now.column + dx)),
    };
    setOver(next);
    point(herd.edges[next.column]);
  };
  const keys: Record<string, () => void> = {
    ArrowUp: () => move(-1, 0),
    ArrowDown: () => move(1, 0),
    ArrowLeft: () => move(0, -1),
    ArrowRight: () => move(0, 1),
    Enter: () => over && adjust({ tensor: herd.names[over.row] }),
  };
  const table = (): Cell[][] => [
    ["tensor", ...Array.from(herd.edges.subarray(0, columns))],
    ...herd.names.map((name, i): Cell[] => [
      name,
      ...Array.from(herd.deviation.subarray(i * columns, (i + 1) * columns)),
    ]),
  ];
  return (
    <>
      <div class="map-host" ref={host}>
        <canvas
          ref={canvas}
          class="map-canvas herd-map"
          style={{ height: `${height}px` }}
          tabIndex={0}
          role="img"
          aria-label={mapSentence(herd, by)}
          data-row-height={row}
          data-labels={left}
          onPointerMove={(event) => {
            const found = at(event);
            setOver(found);
            point(found ? herd.edges[found.column] : undefined);
          }}
          onPointerLeave={() => {
            setOver(null);
            point(undefined);
          }}
          onClick={(event) => {
            const found = at(event);
            if (found)
              adjust({ tensor: herd.names[found.row], at: String(herd.edges[found.column]) });
          }}
          onKeyDown={(event) => {
            const action = keys[event.key];
            if (!action) return;
            event.preventDefault();
            event.stopPropagation();
            action();
          }}
        />
        <Crosshair from={range.from} to={range.to} left={left} width={width} />
        <SaveCanvas title={title} canvas={canvas} table={table} />
      </div>
      <p class="reading" role="status">
        {over && cellText(herd, over.row, over.column, by)}
      </p>
    </>
  );
}

interface Layout {
  left: number;
  width: number;
  row: number;
  height: number;
  chosen: string;
  by: By;
  range: Range;
  cursor: number | undefined;
}

function drawMap(canvas: HTMLCanvasElement, herd: Herd, layout: Layout): void {
  const { left, width, row, height, chosen, by, range, cursor } = layout;
  const ratio = devicePixelRatio || 1;
  canvas.width = (left + width + RIGHT) * ratio;
  canvas.height = height * ratio;
  const ctx = canvas.getContext("2d")!;
  ctx.scale(ratio, ratio);
  const columns = herd.edges.length - 1;
  const x = (place: number) =>
    left + ((place - range.from) / Math.max(1, range.to - range.from)) * width;
  ctx.font = "11px system-ui, sans-serif";
  herd.names.forEach((name, i) => {
    drawRow(ctx, herd, i, row, x);
    if (row < 11) return;
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    ctx.fillStyle = themed(name === chosen ? "ink" : "ink-soft");
    const short = shorten(name.replace(/^(gradient|update)\//, ""), Math.floor(left / 6.4));
    ctx.fillText(short, left - 6, (i + 0.5) * row, left - 8);
  });
  ctx.textAlign = "left";
  const at = herd.names.indexOf(chosen);
  ctx.strokeStyle = themed("accent");
  ctx.lineWidth = 1.5;
  if (at >= 0) ctx.strokeRect(left + 0.75, at * row + 0.75, width - 1.5, row - 1.5);
  if (cursor !== undefined && cursor >= range.from && cursor < range.to) {
    ctx.fillStyle = themed("accent");
    ctx.fillRect(x(cursor), 0, 1, herd.names.length * row);
  }
  drawAxis(ctx, [range.from, range.to], left, width, herd.names.length * row + 2, (place) =>
    placeText(by, place),
  );
  canvas.dataset.drawn = `${columns} ${herd.of}`;
}

function drawRow(
  ctx: CanvasRenderingContext2D,
  herd: Herd,
  i: number,
  row: number,
  x: (place: number) => number,
): void {
  const columns = herd.edges.length - 1;
  const filled: number[] = [];
  for (let j = 0; j < columns; j++)
    if (!Number.isNaN(herd.deviation[i * columns + j])) filled.push(j);
  filled.forEach((j, k) => {
    // A record stands until the next one, but not for much longer than others do.
    const usual =
      filled.length > 1 ? (filled[filled.length - 1] - filled[0]) / (filled.length - 1) : 1;
    const end = Math.min(filled[k + 1] ?? j + Math.ceil(usual), j + Math.ceil(2 * usual), columns);
    const deviation = herd.deviation[i * columns + j];
    const isBad = deviation >= 99 && Number.isNaN(herd.value[i * columns + j]);
    ctx.fillStyle = isBad ? BAD : colorOf(deviation, herd.furthest);
    const from = x(herd.edges[j]);
    ctx.fillRect(
      from,
      i * row,
      Math.max(1, x(herd.edges[end]) - from + 0.4),
      row - (row > 8 ? 1 : 0),
    );
  });
}

function cellText(herd: Herd, i: number, j: number, by: By) {
  const columns = herd.edges.length - 1;
  const at = i * columns + j;
  const deviation = herd.deviation[at];
  const where = placeText(by, herd.edges[j]);
  if (Number.isNaN(deviation))
    return (
      <>
        <b>{shorten(herd.names[i], 80)}</b> <span class="soft">at {where}: not recorded</span>
      </>
    );
  return (
    <>
      <b>{shorten(herd.names[i], 80)}</b> at {where} <em>{number(herd.value[at])}</em>
      <span class="soft">
        the herd {number(herd.low[at])} to {number(herd.high[at])},{" "}
        {number(Number(deviation.toFixed(1)))} deviations from its middle
      </span>
    </>
  );
}

function mapSentence(herd: Herd, by: By): string {
  const first = herd.departures[0];
  const told = first
    ? `${herd.departures.length} tensors left the herd, the first: ${first.name} at ${placeText(by, first.place)}`
    : "no tensor left the herd";
  return plain(`Deviations of ${herd.names.length} tensors from the healthy runs: ${told}`);
}

// --- One layer ---------------------------------------------------------------------

function BandChart({
  herd,
  run,
  tensor,
  by,
  range,
  route,
}: {
  herd: Herd;
  run: ListedRun;
  tensor: string;
  by: By;
  range: Range;
  route: Route;
}) {
  const theme = useTheme();
  const lines = useMemo(() => bandLines(herd, run, tensor), [herd, run.id, tensor, theme]);
  const axis = axisOf(
    lines.map((line) => line.grid),
    route,
  );
  return (
    <Card
      title={shorten(tensor, 80)}
      aside={
        <Link
          to={{ run: run.id, screen: "tensor", tensor }}
          class="button small"
          aria-label={`Open ${plain(tensor)} of ${plain(run.name)}`}
        >
          Open in {shorten(run.name, 24)}
        </Link>
      }
    >
      <LineChart
        key={by}
        lines={lines}
        title={`${tensor} of ${run.name} and the herd`}
        from={range.from}
        to={range.to}
        log={axis.isLog}
        height={260}
        cursor={cursorOf(route)}
        place={(place) => placeText(by, place)}
        onRange={range.set}
        onReset={range.reset}
        onCursor={setCursor}
      />
      <p class="reading">
        {lines.map((line) => (
          <span class="key" key={line.label}>
            <i style={{ background: line.color }} />
            {line.label}
          </span>
        ))}
        <AxisNote axis={axis} lines={lines} />
      </p>
    </Card>
  );
}

/** The band with its middle, and the run over it. */
function bandLines(herd: Herd, run: ListedRun, tensor: string): Line[] {
  const columns = herd.edges.length - 1;
  const i = herd.names.indexOf(tensor);
  const part = (array: Float32Array) => array.subarray(i * columns, (i + 1) * columns);
  const grid = (low: Float32Array, mean: Float32Array, high: Float32Array): Grid => {
    const rows = Uint32Array.from(mean, (value) => Number(!Number.isNaN(value)));
    return {
      names: [tensor],
      start: herd.edges[0],
      width: columns ? herd.edges[1] - herd.edges[0] : 1,
      columns,
      low,
      mean,
      high,
      rows,
      bad: new Uint32Array(columns),
      end: herd.edges[columns],
      sure: 0,
    };
  };
  const own = grid(part(herd.value), part(herd.value), part(herd.value));
  const deviation = part(herd.deviation);
  for (let j = 0; j < columns; j++)
    if (deviation[j] >= 99 && Number.isNaN(own.mean[j])) [own.rows[j], own.bad[j]] = [1, 1];
  return [
    {
      label: "the herd: median and band",
      color: themed("herd"),
      grid: grid(part(herd.low), part(herd.center), part(herd.high)),
    },
    { label: plain(run.name), color: themed("error"), grid: own },
  ];
}
