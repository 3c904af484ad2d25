/** Every layer at every step, and the flow of gradients at one. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { CaptureButton } from "../controls";
import { Flow } from "../flow";
import { count, plain } from "../format";
import { columnWidth } from "../grid";
import { adjust, go, type Route, setCursor, setter } from "../hooks";
import { LayerMap, MOST_READABLE, type Scale } from "../layer_map";
import { Card, Chips, Pending, Select } from "../parts";
import { useRare } from "../rare";
import { cursorOf, hasRanks, type Range, rankOf, useGrid } from "../run_data";
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
  const role = roles.find((each) => each === route.role) ?? roles[0];
  const field = FIELDS.find((each) => each === route.field) ?? "rms";
  const at = cursorOf(route);
  const rank = rankOf(run, route);
  const rare = useRare(hasRanks(run)).data;
  const order = useMemo(
    () => tensors.filter((each) => each.role === role).map((each) => each.name),
    [tensors, role],
  );
  const [isDrawn, setDrawn] = useState(false);
  const most = isDrawn ? MAP_COLUMNS : firstColumns(run, range, order.length);
  const envelope = (role: string | undefined, field: Field, most: number) =>
    role
      ? {
          path: "envelope" as const,
          run: run.id,
          role,
          field,
          worker: rank,
          from: range.from,
          to: range.to,
          most,
        }
      : null;
  const grid = useGrid(envelope(role, field, most), version);
  useEffect(() => setDrawn(grid.data !== null), [grid.data]);
  const flowRole = tensors.some((each) => each.role === "gradient") ? "gradient" : undefined;
  const isSame = flowRole === role && field === "rms";
  const flow = useGrid(isSame ? null : envelope(flowRole, "rms", MAP_COLUMNS), version);
  const flowGrid = isSame ? grid : flow;
  const scale: Scale = route.scale === "row" ? "row" : "all";
  const flowOrder = useMemo(() => {
    const gradients = tensors.filter((each) => each.role === "gradient");
    const matrices = gradients.filter((each) => (each.shape?.length ?? 2) > 1);
    return (matrices.length ? matrices : gradients).map((each) => each.name);
  }, [tensors]);
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
      <div class="pair">
        <Losses run={run} range={range} route={route} version={version} cursor={at} />
        <Card
          title="Gradient flow"
          aside={
            <span class="soft">
              {rank && `${plain(rank)}, `}rms by depth, step{" "}
              {count(Math.min(step, run.last_step ?? step))}
            </span>
          }
        >
          {flowGrid.data?.names.length ? (
            <Flow
              grid={flowGrid.data}
              order={flowOrder}
              step={step}
              height={236}
              onOpen={openTensor}
            />
          ) : (
            <NoFlow run={run} isKnown={tensors.length > 0 && !flowRole} />
          )}
        </Card>
      </div>
      {role && (
        <Card
          title={`Every layer, every step${rank ? `, ${plain(rank)}` : ""}`}
          aside={
            <div class="settings">
              {rare && <rare.RankSelect run={run} rank={rank} />}
              <Chips
                label="Of what"
                options={roles}
                value={role}
                names={ROLE_NAMES}
                onChange={setter("role", roles[0])}
              />
              <Select
                label="Statistic"
                class="statistic"
                options={FIELDS}
                names={FIELD_NAMES}
                value={field}
                onChange={setter("field", "rms")}
              />
              {order.length > MOST_READABLE && (
                <Chips
                  label="Rows"
                  options={["all", "each"] as const}
                  value={route.rows === "each" ? "each" : "all"}
                  names={{ all: "all at once", each: "row by row" }}
                  onChange={setter("rows", "all")}
                />
              )}
              <Chips
                label="Order"
                options={["depth", "worst"] as const}
                value={route.order === "worst" ? "worst" : "depth"}
                names={{ depth: "by depth", worst: "worst first" }}
                onChange={setter("order", "depth")}
              />
              <Chips
                label="Scale"
                options={["all", "row"] as const}
                value={scale}
                names={{ all: "one scale", row: "per layer" }}
                onChange={setter("scale", "all")}
              />
            </div>
          }
        >
          {grid.data?.names.length ? (
            <LayerMap
              grid={grid.data}
              field={field}
              scale={scale}
              from={range.from}
              to={range.to}
              order={order}
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
      {rare && <rare.StepTimes run={run} range={range} cursor={at} version={version} />}
    </>
  );
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
