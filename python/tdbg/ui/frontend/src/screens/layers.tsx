/** Every layer at every step, and the flow of gradients at one. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { CaptureButton } from "../controls";
import { Flow } from "../flow";
import { count, plain, steps as stepsText } from "../format";
import { columnOf, columnWidth, type Grid, lastWithRows } from "../grid";
import { type Answer, adjust, go, type Route, setCursor, setter } from "../hooks";
import { EXTENT_COLUMNS, LayerMap, MOST_READABLE, type Scale } from "../layer_map";
import { Card, Chips, Pending, Select } from "../parts";
import { useRare } from "../rare";
import {
  cursorOf,
  hasRanks,
  intervalOf,
  isAtEachStep,
  type Range,
  rankOf,
  useGrid,
} from "../run_data";
import type { Field, Run, Tensor } from "../types";
import { Losses } from "./losses";

const ROLES = [
  "gradient",
  "weight",
  "bias",
  "output",
  "input",
  "update",
  "optimizer_state",
] as const;

const ROLE_NAMES: Record<string, string> = {
  gradient: "gradients",
  weight: "weights",
  bias: "biases",
  output: "outputs",
  input: "inputs",
  update: "updates",
  optimizer_state: "optimizer",
};

export const FIELDS: Field[] = ["rms", "l2", "abs_max", "std", "mean", "zero_share"];

export const FIELD_NAMES: Record<Field, string> = {
  rms: "rms",
  l2: "l2",
  abs_max: "max |x|",
  std: "std",
  mean: "mean",
  zero_share: "zeros",
};

const MAP_COLUMNS = 640;

/** Cells of a run are envelopes of so many recorded steps: columns as wide as them need no rows. */
const BUCKET = 64;

/** More rows take so long to read that a picture of cells comes first. */
const MANY_ROWS = 1e6;

export function Charts({
  run,
  tensors,
  range,
  route,
  version,
}: {
  run: Run;
  tensors: Tensor[];
  range: Range;
  route: Route;
  version: number;
}) {
  const roles = ROLES.filter((role) => tensors.some((each) => each.role === role));
  const role = roleOf(roles, route);
  const field = fieldOf(route);
  const at = cursorOf(route);
  const rank = rankOf(run, route);
  const areTrees = run.step_word === "round";
  const rare = useRare(areTrees || hasRanks(run)).data;
  const order = useMemo(
    () => tensors.filter((each) => each.role === role).map((each) => each.name),
    [tensors, role],
  );
  const [isDrawn, setDrawn] = useState(false);
  const most = isDrawn ? MAP_COLUMNS : firstColumns(run, range, order.length);
  const envelope = { path: "envelope" as const, run: run.id, role, field, worker: rank };
  const grid = useGrid(
    role ? { ...envelope, from: range.from, to: range.to, most } : null,
    version,
  );
  useEffect(() => setDrawn(grid.data !== null), [grid.data]);
  // The whole run, coarsely: the scale of colours stays what it is when the range changes.
  const whole = useGrid(
    !range.isWhole && role ? { ...envelope, ...range.whole, most: EXTENT_COLUMNS } : null,
    0,
  );
  const interval = intervalOf(run, role);
  const scale = scaleOf(route);
  const marked = useMemo(
    () => run.findings.filter((each) => order.includes(each.tensor)),
    [run.findings, order],
  );
  const openTensor = (tensor: string, step: number) =>
    go(
      {
        run: run.id,
        screen: "tensor",
        tensor,
        at: String(step),
        from: route.from,
        to: route.to,
        rank,
      },
      { fresh: true },
    );
  const step = at !== undefined && at >= range.from && at < range.to ? at : range.to - 1;
  return (
    <>
      <Losses run={run} range={range} route={route} version={version} cursor={at} />
      {areTrees && (rare ? <rare.Trees run={run} /> : <Pending />)}
      {role && (
        <Card
          title={`Every layer${isAtEachStep(run, role) ? ", every step" : ""}${rank ? `, ${plain(rank)}` : ""}`}
          aside={<MapSettings run={run} route={route} roles={roles} rows={order.length} />}
        >
          {grid.data?.names.length ? (
            <LayerMap
              grid={grid.data}
              field={field}
              scale={scale}
              from={range.from}
              to={range.to}
              order={order}
              whole={range.isWhole ? null : whole.data}
              interval={interval}
              each={route.rows === "each"}
              worst={route.order === "worst"}
              fold={route.fold}
              onFold={(fold) => adjust({ fold })}
              label={(name) =>
                name.replace(/^(gradient|update)\//, "").replace(/^optimizer\/[^/]*\//, "")
              }
              findings={marked}
              end={(run.last_step ?? 0) + 1}
              cursor={at}
              onCursor={setCursor}
              onOpen={openTensor}
              onRange={range.set}
              onReset={range.reset}
            />
          ) : (
            <div class="empty">
              <Pending error={grid.error} />
            </div>
          )}
        </Card>
      )}
      {rare && hasRanks(run) && (
        <rare.StepTimes run={run} range={range} cursor={at} version={version} />
      )}
      {!areTrees && (
        <FlowCard
          run={run}
          tensors={tensors}
          map={role === "gradient" && field === "rms" ? grid : null}
          rank={rank}
          range={range}
          step={step}
          version={version}
          onOpen={openTensor}
        />
      )}
    </>
  );
}

/** Ways to draw the map, each with its usual form and another one. */
const WAYS = [
  {
    key: "rows",
    label: "Rows",
    usual: "all",
    other: "each",
    names: { all: "all at once", each: "row by row" },
  },
  {
    key: "order",
    label: "Order",
    usual: "depth",
    other: "worst",
    names: { depth: "by depth", worst: "worst first" },
  },
  {
    key: "scale",
    label: "Scale",
    usual: "all",
    other: "row",
    names: { all: "one scale", row: "per layer" },
  },
] as const;

/** What the map shows, and how. */
function MapSettings({
  run,
  route,
  roles,
  rows,
}: {
  run: Run;
  route: Route;
  roles: Role[];
  rows: number;
}) {
  const rare = useRare(hasRanks(run)).data;
  return (
    <div class="settings">
      {rare && <rare.RankSelect run={run} rank={rankOf(run, route)} />}
      <Chips
        label="Of what"
        options={roles}
        value={roleOf(roles, route)}
        names={ROLE_NAMES}
        onChange={setter("role", roles[0])}
      />
      <Select
        label="Statistic"
        class="statistic"
        options={FIELDS}
        names={FIELD_NAMES}
        value={fieldOf(route)}
        onChange={setter("field", "rms")}
      />
      {WAYS.filter((way) => way.key !== "rows" || rows > MOST_READABLE).map(
        ({ key, label, usual, other, names }) => (
          <Chips
            key={key}
            label={label}
            options={[usual, other]}
            value={route[key] === other ? other : usual}
            names={names}
            onChange={setter(key, usual)}
          />
        ),
      )}
    </div>
  );
}

type Role = (typeof ROLES)[number];

function roleOf(roles: Role[], route: Route): Role {
  return roles.find((each) => each === route.role) ?? roles[0];
}

function fieldOf(route: Route): Field {
  return FIELDS.find((each) => each === route.field) ?? "rms";
}

function scaleOf(route: Route): Scale {
  return route.scale === "row" ? "row" : "all";
}

/** How gradients reach the layers at one step. */
function FlowCard({
  run,
  tensors,
  map,
  rank,
  range,
  step,
  version,
  onOpen,
}: {
  run: Run;
  tensors: Tensor[];
  /** What the map shows, where that is the same. */
  map: Answer<Grid> | null;
  rank: string | undefined;
  range: Range;
  step: number;
  version: number;
  onOpen: (tensor: string, step: number) => void;
}) {
  const order = useMemo(() => {
    const gradients = tensors.filter((each) => each.role === "gradient");
    const matrices = gradients.filter((each) => (each.shape?.length ?? 2) > 1);
    return (matrices.length ? matrices : gradients).map((each) => each.name);
  }, [tensors]);
  const own = useGrid(
    order.length && !map
      ? {
          path: "envelope",
          run: run.id,
          role: "gradient",
          field: "rms",
          worker: rank,
          from: range.from,
          to: range.to,
          most: MAP_COLUMNS,
        }
      : null,
    version,
  );
  const grid = (map ?? own).data;
  return (
    <Card
      title="Gradient flow"
      aside={
        <span class="soft">
          {rank && `${plain(rank)}, `}rms by depth{grid && whenText(grid, step)}
        </span>
      }
    >
      {grid?.names.length ? (
        <Flow grid={grid} order={order} step={step} height={236} onOpen={onOpen} />
      ) : (
        <NoFlow run={run} isKnown={tensors.length > 0 && !order.length} />
      )}
    </Card>
  );
}

/** At which step something was recorded last, up to the step that is looked at. */
function whenText(grid: Grid, step: number): string {
  const at = columnOf(grid, step);
  const last = Math.max(...grid.names.map((_, i) => lastWithRows(grid, i, at)));
  if (last < 0) return "";
  const first = grid.start + last * grid.width;
  const when = `, recorded at ${stepsText(first, first + grid.width - 1)}`;
  return last < at ? `${when}, the last before step ${count(step)}` : when;
}

/** In place of the flow of gradients: that there are none, if that is known. */
function NoFlow({ run, isKnown }: { run: Run; isKnown: boolean }) {
  if (!isKnown) return <div class="empty soft">reading …</div>;
  return (
    <div class="empty">
      <p>No gradients were captured.</p>
      <p class="soft">
        Capture them with <code>include_collections=["gradients"]</code>
        {run.may_control && run.state === "running" && ", or now:"}
      </p>
      {run.may_control && <CaptureButton run={run} />}
    </div>
  );
}

/** As many columns of a map as are read at once: nothing is left out of wider ones, either. */
function firstColumns(run: Run, { from, to }: Range, tensors: number): number {
  const bucket =
    (BUCKET * ((run.last_step ?? 0) + 1 - (run.first_step ?? 0))) / Math.max(1, run.recorded);
  const buckets = (to - from) / bucket;
  return tensors * buckets * BUCKET > MANY_ROWS && columnWidth(from, to, MAP_COLUMNS) < bucket
    ? Math.floor(buckets) + 2
    : MAP_COLUMNS;
}
