/** What the runs differ in, beside what came of it: an axis for each, a line for each run. */
import { useMemo, useRef, useState } from "preact/hooks";
import { ticks } from "../canvas";
import { number, plain, shorten, tickText } from "../format";
import { adjust, go, type Route, useSize } from "../hooks";
import { Card } from "../parts";
import { type Cell, SaveButton } from "../saving";
import type { ListedRun } from "../types";
import { numericColumns, shareOf, useColors } from "./charts";
import type { Column, Value } from "./columns";
import type { Selection } from "./selection";

const HEIGHT = 440;
const MARGIN = { top: 46, bottom: 12, side: 70 };
const MOST_AXES = 9;
/** A range that is dragged is at least so many pixels. */
const LEAST_DRAG = 4;
/** Marks of an axis, as a share of it. */
const LEAST_APART = 0.05;
/** Runs without a value stand above the axis. */
const NO_VALUE = -14;

interface Axis {
  column: Column;
  /** Where a value is: 0 at the foot, 1 at the top; null where there is none. */
  share: (value: Value) => number | null;
  /** The value at a share; undefined for words. */
  at?: (share: number) => number;
  ticks: { share: number; text: string }[];
}

interface Props {
  runs: ListedRun[];
  selection: Selection;
  route: Route;
}

export function Parallel(props: Props) {
  const columns = shownColumns(props.selection);
  if (columns.length < 2)
    return <p class="soft">These runs do not differ in any setting that tdbg knows of.</p>;
  return <Axes {...props} columns={columns} />;
}

function Axes({ runs, selection, route, columns }: Props & { columns: Column[] }) {
  const [host, size] = useSize();
  const svg = useRef<SVGSVGElement>(null);
  const [over, setOver] = useState<string | null>(null);
  const axes = useMemo(
    () => columns.map((column) => axisOf(column, runs)),
    [columns.map((each) => each.id).join(), runs],
  );
  const usual = columns[columns.length - 1]?.isNumber ? columns[columns.length - 1].id : undefined;
  const { colors, key } = useColors(runs, selection, { ...route, color: route.color ?? usual });
  const width = Math.max(size.width, 110 * axes.length);
  const x = (i: number) =>
    MARGIN.side + (i / Math.max(1, axes.length - 1)) * (width - 2 * MARGIN.side);
  const y = (share: number | null) =>
    share === null
      ? MARGIN.top + NO_VALUE
      : MARGIN.top + (1 - share) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const told = runs.find((run) => run.id === over);
  const table = (): Cell[][] => [
    ["run", ...columns.map((each) => each.label)],
    ...runs.map((run) => [run.name, ...columns.map((each): Cell => each.of(run) ?? null)]),
  ];
  return (
    <Card
      title="What the runs differ in"
      class="parallel"
      aside={<span class="soft">Drag along an axis to filter; click a line to open its run</span>}
    >
      {key}
      <div class="scroll-x" ref={host}>
        <svg
          ref={svg}
          width={width}
          height={HEIGHT}
          role="img"
          aria-label={sentence(runs, columns)}
          data-chart="parallel"
        >
          {runs.map((run) => (
            // biome-ignore lint/a11y/noStaticElementInteractions: the table has the same links
            <path
              key={run.id}
              class={`run-path ${over === run.id ? "over" : ""}`}
              d={pathOf(axes.map((axis, i) => [x(i), y(axis.share(axis.column.of(run)))]))}
              stroke={colors.get(run.id)}
              onPointerEnter={() => setOver(run.id)}
              onPointerLeave={() => setOver(null)}
              onClick={() => go({ run: run.id }, { fresh: true })}
            />
          ))}
          {axes.map((axis, i) => (
            <AxisLine key={axis.column.id} axis={axis} x={x(i)} y={y} route={route} />
          ))}
        </svg>
        <SaveButton
          title="parameters"
          drawing={() => ({ kind: "svg", title: "parameters", svg: svg.current!, table })}
        />
      </div>
      <p class="reading" role="status">
        {told && (
          <>
            <b>{shorten(told.name, 60)}</b>{" "}
            {columns.map((each) => `${plain(each.label)} ${each.text(told) || "–"}`).join(" · ")}
          </>
        )}
      </p>
    </Card>
  );
}

/** What differs, then the best of the first metrics. */
function shownColumns(selection: Selection): Column[] {
  const best = numericColumns(selection).filter((each) => each.id.startsWith("best."));
  const settings = selection.columns.differing.slice(0, MOST_AXES - Math.min(2, best.length));
  return [...settings, ...best.slice(0, 2).reverse()];
}

function axisOf(column: Column, runs: ListedRun[]): Axis {
  const values = runs.map(column.of);
  if (!column.isNumber) return axisOfWords(column, values);
  const numbers = values.filter((value) => typeof value === "number");
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const share = shareOf(numbers);
  const isLog = low > 0 && high > 20 * low;
  const at = isLog ? (s: number) => low * (high / low) ** s : (s: number) => low + s * (high - low);
  const distinct = [...new Set(numbers)].sort((a, b) => a - b);
  const marked = distinct.length <= 6 ? distinct : marksBetween(low, high, isLog);
  return {
    column,
    share: (value) => (typeof value === "number" ? share(value) : null),
    at,
    ticks: marked.map((value) => ({
      share: share(value),
      text: tickText(Number(value.toPrecision(3))),
    })),
  };
}

/** The ends of an axis, and round numbers between them that are not too near. */
function marksBetween(low: number, high: number, isLog: boolean): number[] {
  const place = isLog ? Math.log10 : (value: number) => value;
  const [first, span] = [place(low), place(high) - place(low)];
  const round = isLog
    ? Array.from({ length: Math.ceil(span) + 1 }, (_, i) => 10 ** (Math.ceil(first) + i))
    : ticks(low, high, 450, 0);
  const inner = round.filter((value) => {
    const share = (place(value) - first) / span;
    return share > LEAST_APART && share < 1 - LEAST_APART;
  });
  return [low, ...inner, high];
}

function axisOfWords(column: Column, values: Value[]): Axis {
  const words = [...new Set(values.filter((value) => typeof value === "string"))].sort();
  const share = (value: Value) => {
    const i = words.indexOf(String(value));
    return i < 0 ? null : (i + 0.5) / words.length;
  };
  const ticks = words.map((word) => ({ share: share(word)!, text: shorten(word, 14) }));
  return { column, share, ticks };
}

function pathOf(points: [number, number][]): string {
  return points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
}

function AxisLine({
  axis,
  x,
  y,
  route,
}: {
  axis: Axis;
  x: number;
  y: (share: number | null) => number;
  route: Route;
}) {
  const [range, setRange] = useState<[number, number] | null>(null);
  const shareAt = (event: PointerEvent) => {
    const box = (event.currentTarget as SVGElement).ownerSVGElement!.getBoundingClientRect();
    const at = 1 - (event.clientY - box.top - y(1)) / (y(0) - y(1));
    return Math.max(0, Math.min(1, at));
  };
  const end = () => {
    if (range && axis.at && Math.abs(range[0] - range[1]) * (y(0) - y(1)) >= LEAST_DRAG) {
      const [low, high] = [...range].sort((a, b) => a - b).map(axis.at);
      adjust({ find: within(route.find ?? "", axis.column, low, high) });
    }
    setRange(null);
  };
  return (
    <g class="axis">
      <line x1={x} x2={x} y1={y(0)} y2={y(1)} />
      {axis.ticks.map((tick) => (
        <text key={tick.text} x={x + 7} y={y(tick.share) + 4}>
          {tick.text}
        </text>
      ))}
      <text class="axis-name" x={x} y={18} text-anchor="middle">
        {shorten(axis.column.label, 18)}
        <title>{plain(axis.column.title ?? axis.column.label)}</title>
      </text>
      {range && (
        <rect
          class="brushed"
          x={x - 9}
          width={18}
          y={Math.min(...range.map(y))}
          height={Math.abs(y(range[0]) - y(range[1]))}
        />
      )}
      {axis.at && (
        <rect
          class="brush"
          x={x - 9}
          width={18}
          y={y(1) - 4}
          height={y(0) - y(1) + 8}
          onPointerDown={(event) => {
            (event.currentTarget as SVGElement).setPointerCapture(event.pointerId);
            setRange([shareAt(event), shareAt(event)]);
          }}
          onPointerMove={(event) => range && setRange([range[0], shareAt(event)])}
          onPointerUp={end}
          onPointerCancel={() => setRange(null)}
        />
      )}
    </g>
  );
}

/** A filter with a range of one column, in place of the one that it had. */
function within(find: string, column: Column, low: number, high: number): string {
  const name = /^[\w./@-]+$/.test(column.id) ? column.id : `"${column.id}"`;
  const escaped = name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const rest = find.replace(new RegExp(`(^|\\s)${escaped}(>=|<=)\\S+`, "g"), "").trim();
  const short = (value: number) => String(Number(value.toPrecision(3)));
  return [rest, `${name}>=${short(low)}`, `${name}<=${short(high)}`].filter(Boolean).join(" ");
}

function sentence(runs: ListedRun[], columns: Column[]): string {
  const parts = columns.map((column) => {
    const values = runs.map(column.of).filter((value) => typeof value === "number");
    if (!values.length) return column.label;
    return `${column.label} from ${number(Math.min(...values))} to ${number(Math.max(...values))}`;
  });
  return `${runs.length} runs: ${parts.map(plain).join("; ")}`;
}
