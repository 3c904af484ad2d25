/** One run: what is wrong, how it learns, and every layer at once. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { post } from "../api";
import { series, themed } from "../colors";
import { bytes, compareNames, count, number, percent, plain, shorten, steps as stepsText } from "../format";
import { Flow } from "../flow";
import { columnWidth, type Grid } from "../grid";
import { adjust, go, setCursor, setter, useRoute, type Route } from "../hooks";
import { LayerMap, MOST_READABLE, type Scale } from "../layer_map";
import { LineChart, hasBelow } from "../line_chart";
import { useRare } from "../rare";
import { cursorOf, hasRanks, rangeOf, rankOf, useGrid, useTensors, type Range } from "../run_data";
import { AxisChips, Card, Chips, LineKeys, Link, Mark, Notice, Select, groups, placeOf, type Group } from "../parts";
import { Timeline } from "../timeline";
import type { Field, Finding, Run, Tensor } from "../types";
import { CaptureButton } from "../controls";

const ROLES = ["gradient", "weight", "bias", "output", "input", "update", "optimizer_state"] as const;
const ROLE_NAMES: Record<string, string> = { gradient: "gradients", weight: "weights", bias: "biases", output: "outputs", input: "inputs", update: "updates", optimizer_state: "optimizer" };
export const FIELDS: Field[] = ["rms", "l2", "abs_max", "std", "mean", "zero_share"];
export const FIELD_NAMES: Record<Field, string> = { rms: "rms", l2: "l2", abs_max: "max |x|", std: "std", mean: "mean", zero_share: "zeros" };
const MAP_COLUMNS = 640;
/** Cells of a run are envelopes of so many recorded steps: columns as wide as them need no rows. */
const BUCKET = 64;
/** More rows take so long to read that a picture of cells comes first. */
const MANY_ROWS = 1e6;
const CURVE_COLUMNS = 900;

export function RunScreen({ run, version }: { run: Run; version: number }) {
  const route = useRoute();
  const range = rangeOf(run, route);
  const tensors = useTensors(run);
  const open = (group: Group) =>
    group.findings.length > 1 ? go({ run: run.id, screen: "findings", find: group.rule }, { fresh: true }) : go(placeOf(run.id, group.findings[0], run.last_step), { fresh: true });
  return (
    <main class="run">
      <Verdict run={run} />
      {run.steps > 0 && (
        <>
          <Card class="axis">
            <Timeline
              first={run.first_step ?? 0}
              end={(run.last_step ?? 0) + 1}
              from={range.from}
              to={range.to}
              findings={run.findings}
              changes={run.changes.filter((each) => each.state === "accepted")}
              onRange={range.set}
              onReset={range.reset}
              onFinding={open}
            />
            <RangeChip run={run} range={range} />
          </Card>
          <Charts run={run} tensors={tensors} range={range} route={route} version={version} />
        </>
      )}
      <Facts run={run} />
    </main>
  );
}

function RangeChip({ run, range }: { run: Run; range: Range }) {
  const isWhole = range.from <= (run.first_step ?? 0) && range.to >= (run.last_step ?? 0) + 1;
  if (isWhole) return <p class="soft hint">Drag over the axis, the loss or the map to look closer; double-click for all steps.</p>;
  const behind = (run.last_step ?? 0) + 1 - range.to;
  return (
    <p class="soft hint">
      {stepsText(range.from, range.to - 1)}
      {!range.follows && behind > 0 && ` · +${count(behind)} steps since`}
      <button type="button" class="small" onClick={range.reset}>
        Show all steps
      </button>
    </p>
  );
}

export function Verdict({ run }: { run: Run }) {
  const active = groups(run.findings.filter((each) => !each.over));
  const worst = active[0];
  return (
    <section class={`verdict ${run.verdict.tone}`} aria-label="Verdict">
      <Mark tone={run.verdict.tone} size={30} />
      <div>
        <h1>{plain(run.verdict.sentence)}</h1>
        {worst && (
          <>
            <p class="measured">{plain(worst.findings[0].message)}</p>
            {worst.findings[0].advice && (
              <p class="advice">
                <b>What to do</b> {plain(worst.findings[0].advice)}
              </p>
            )}
          </>
        )}
        {run.verdict.tone === "starting" && run.status === "running" && <p class="measured">The process lives and has opened the run. The charts come with the first step that ends.</p>}
        {run.verdict.tone === "unjudged" && (
          <p class="advice">
            <b>What to do</b> judge it{run.may_control ? " here, or by" : ":"} <code>tdbg check {shorten(run.path, 80)}</code>, or while it trains <code>tdbg watch {shorten(run.path, 80)}</code>
          </p>
        )}
        {run.stopped && !(worst && run.stopped.includes(worst.findings[0].message)) && (
          <p class="measured">
            <b>Stopped:</b> {plain(run.stopped)}
          </p>
        )}
      </div>
      {worst ? (
        <Link class="button filled" to={placeOf(run.id, worst.findings[0], run.last_step)}>
          Show me
        </Link>
      ) : (
        run.verdict.tone === "unjudged" && <JudgeButton run={run} />
      )}
    </section>
  );
}

/** Judges the run in the server, as tdbg check does; what is found appears as it is found. */
export function JudgeButton({ run }: { run: Run }) {
  const [error, setError] = useState("");
  if (!run.may_control || !run.steps) return null;
  const state = run.judging?.state;
  const isBusy = state === "waiting" || state === "judging";
  const why = error || (state === "failed" && run.judging!.reason);
  return (
    <div class="judge" role="status">
      <button type="button" class="filled" disabled={isBusy} onClick={() => post("judge", { run: run.id }, {}).then(() => setError(""), (failure) => setError(failure.message))}>
        {isBusy ? "judging …" : "Judge now"}
      </button>
      {why && <p class="bad">{plain(why)}</p>}
    </div>
  );
}

function Charts({ run, tensors, range, route, version }: { run: Run; tensors: Tensor[]; range: Range; route: Route; version: number }) {
  const roles = ROLES.filter((role) => tensors.some((each) => each.role === role));
  const role = roles.includes(route.role as never) ? (route.role as (typeof ROLES)[number]) : roles[0];
  const field = (FIELDS.includes(route.field as Field) ? route.field : "rms") as Field;
  const at = cursorOf(route);
  const rank = rankOf(run, route);
  const rare = useRare(hasRanks(run)).data;
  const order = useMemo(() => tensors.filter((each) => each.role === role).map((each) => each.name), [tensors, role]);
  const [isDrawn, setDrawn] = useState(false);
  const most = isDrawn ? MAP_COLUMNS : firstColumns(run, range, order.length);
  const grid = useGrid(role ? { path: "envelope", run: run.id, role, field, worker: rank, from: range.from, to: range.to, most } : null, version);
  useEffect(() => setDrawn(grid.data !== null), [grid.data]);
  const flowRole = tensors.some((each) => each.role === "gradient") ? "gradient" : undefined;
  const isSame = flowRole === role && field === "rms";
  const flow = useGrid(flowRole && !isSame ? { path: "envelope", run: run.id, role: flowRole, field: "rms", worker: rank, from: range.from, to: range.to, most: MAP_COLUMNS } : null, version);
  const flowGrid = isSame ? grid : flow;
  const scale: Scale = route.scale === "row" ? "row" : "all";
  const flowOrder = useMemo(() => tensors.filter((each) => each.role === "gradient" && (each.shape === null || each.shape.length > 1)).map((each) => each.name), [tensors]);
  const ofLayers = flowOrder.length ? flowOrder : tensors.filter((each) => each.role === "gradient").map((each) => each.name);
  const marked = useMemo(() => run.findings.filter((each) => order.includes(each.tensor)), [run.findings, order]);
  const openTensor = (tensor: string, step: number) => go({ run: run.id, screen: "tensor", tensor, at: String(step), from: route.from, to: route.to, rank }, { fresh: true });
  const step = at !== undefined && at >= range.from && at < range.to ? at : range.to - 1;
  return (
    <>
      <div class="pair">
        <Losses run={run} range={range} route={route} version={version} cursor={at} />
        <Card title="Gradient flow" aside={<span class="soft">{rank && `${plain(rank)}, `}rms by depth, step {count(Math.min(step, run.last_step ?? step))}</span>}>
          {flowGrid.data && flowGrid.data.names.length ? (
            <Flow grid={flowGrid.data} order={ofLayers} step={step} height={236} onOpen={openTensor} />
          ) : tensors.length > 0 && !flowRole ? (
            <div class="empty">
              <p>No gradients were captured.</p>
              <p class="soft">
                Capture them with <code>include_collections=["gradients"]</code>
                {run.may_control && run.status === "running" && ", or now:"}
              </p>
              {run.may_control && <CaptureButton run={run} />}
            </div>
          ) : (
            <div class="empty soft">reading …</div>
          )}
        </Card>
      </div>
      {role && (
        <Card
          title={`Every layer, every step${rank ? `, ${plain(rank)}` : ""}`}
          aside={
            <div class="settings">
              {rare && <rare.RankSelect run={run} rank={rank} />}
              <Chips label="Of what" options={roles} value={role} names={ROLE_NAMES} onChange={setter("role", roles[0])} />
              <Select label="Statistic" class="statistic" options={FIELDS} names={FIELD_NAMES} value={field} onChange={setter("field", "rms")} />
              {order.length > MOST_READABLE && <Chips label="Rows" options={["all", "each"] as const} value={route.rows === "each" ? "each" : "all"} names={{ all: "all at once", each: "row by row" }} onChange={setter("rows", "all")} />}
              <Chips label="Order" options={["depth", "worst"] as const} value={route.order === "worst" ? "worst" : "depth"} names={{ depth: "by depth", worst: "worst first" }} onChange={setter("order", "depth")} />
              <Chips label="Scale" options={["all", "row"] as const} value={scale} names={{ all: "one scale", row: "per layer" }} onChange={setter("scale", "all")} />
            </div>
          }
        >
          {grid.data && grid.data.names.length ? (
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
              label={(name) => name.replace(/^(gradient|update)\//, "").replace(/^optimizer\/[^/]*\//, "")}
              findings={marked}
              end={(run.last_step ?? 0) + 1}
              cursor={at}
              onCursor={setCursor}
              onOpen={openTensor}
              onRange={range.set}
              onReset={range.reset}
            />
          ) : grid.error ? (
            <Notice title="The map cannot be drawn" tone="error">
              <p>{plain(grid.error.message)}</p>
            </Notice>
          ) : (
            <div class="empty soft">reading …</div>
          )}
        </Card>
      )}
      {rare && <rare.StepTimes run={run} range={range} cursor={at} version={version} />}
    </>
  );
}

/** As many columns of a map as are read at once: nothing is left out of wider ones, either. */
function firstColumns(run: Run, { from, to }: Range, tensors: number): number {
  const bucket = (BUCKET * ((run.last_step ?? 0) + 1 - (run.first_step ?? 0))) / Math.max(1, run.recorded);
  const buckets = (to - from) / bucket;
  return tensors * buckets * BUCKET > MANY_ROWS && columnWidth(from, to, MAP_COLUMNS) < bucket ? Math.floor(buckets) + 2 : MAP_COLUMNS;
}

/** Which curve belongs to which: losses first, of scalars one at a time. */
function Losses({ run, range, route, version, cursor }: { run: Run; range: Range; route: Route; version: number; cursor: number | undefined }) {
  const name = route.curve && run.curves.includes(route.curve) ? route.curve : run.curves[0];
  const modes = run.modes.filter((mode) => mode === "TRAIN" || mode === "EVAL");
  const split = modes.length > 1;
  const request = (mode?: string) => (name ? { path: "curve" as const, run: run.id, name, mode, from: range.from, to: range.to, most: CURVE_COLUMNS } : null);
  const train = useGrid(request(split ? "TRAIN" : undefined), version);
  const evaluation = useGrid(split ? request("EVAL") : null, version);
  const isLog = route.axis ? route.axis === "log" : train.data !== null && runsAway(train.data);
  const lines = useMemo(() => {
    const found = [];
    if (train.data) found.push({ label: split ? "train" : plain(name ?? ""), color: series(0), grid: train.data });
    if (split && evaluation.data?.rows.some((n) => n > 0)) found.push({ label: "evaluation", color: series(1), grid: evaluation.data });
    return found;
  }, [train.data, evaluation.data, split, name]);
  const flags = useMemo(
    () => run.findings.filter((each) => each.tensor === name).map((each) => ({ from: each.first_step, to: each.last_step + 1, color: themed(each.severity) })),
    [run.findings, name],
  );
  const bad = lines.reduce((sum, { grid }) => sum + grid.bad.reduce((a, b) => a + b, 0), 0);
  const last = lines[0] ? lastMean(lines[0].grid) : null;
  return (
    <Card
      title="Loss"
      aside={
        <div class="settings">
          {last !== null && <span class={`now${Number.isNaN(last) ? " bad" : ""}`}>{Number.isNaN(last) ? "NaN" : number(last)}</span>}
          {run.curves.length > 1 && (
            <Select label="Which curve" class="curves" options={run.curves} value={name!} onChange={setter("curve", run.curves[0])} />
          )}
          <AxisChips isLog={isLog} />
        </div>
      }
    >
      {!name ? (
        <div class="empty">
          <p>No loss and no scalar was captured.</p>
          <p class="soft">
            Register it: <code>hook.register_loss(criterion)</code>
          </p>
        </div>
      ) : (
        <LineChart lines={lines} title="Loss" from={range.from} to={range.to} log={isLog} height={236} cursor={cursor} flags={flags} onRange={range.set} onReset={range.reset} onCursor={setCursor} />
      )}
      {name && <p class="reading">
        {lines.length > 1 && <LineKeys lines={lines} />}
        {bad > 0 ? <strong class="bad">NaN or Inf in {count(bad)} step{bad > 1 && "s"}</strong> : <span class="soft">line: mean · band: least to greatest of a column</span>}
        {isLog && hasBelow(lines) && <span class="soft"> at the foot: zero or below</span>}
      </p>}
    </Card>
  );
}

/** Whether a few values are so great that a linear axis would show nothing of the others. */
function runsAway(grid: Grid): boolean {
  const means = [...grid.mean].filter((value, j) => grid.rows[j] && value > 0).sort((a, b) => a - b);
  return means.length > 0 && means[means.length - 1] > 1000 * means[Math.floor(means.length / 2)];
}

function lastMean(grid: { columns: number; rows: Uint32Array; mean: Float32Array }): number | null {
  for (let j = grid.columns - 1; j >= 0; j--) if (grid.rows[j]) return grid.mean[j];
  return null;
}

function Facts({ run }: { run: Run }) {
  const workers = Object.entries(run.workers).sort(([a], [b]) => compareNames(a, b));
  const unwell = workers.filter(([, state]) => state !== workers[0]?.[1]);
  const judged = Object.keys(run.rules).length;
  return (
    <footer class="facts">
      {run.problem_list.length > 0 && (
        <Notice title={`${count(run.problems)} thing${run.problems > 1 ? "s" : ""} in the files ${run.problems > 1 ? "are" : "is"} not as it should be; the rest is shown`} tone="warning">
          <ul>
            {run.problem_list.slice(0, 5).map((each, i) => (
              <li key={i}>
                {plain(each.kind)}: {each.file && <code>{plain(each.file)}</code>} {plain(each.message)}
              </li>
            ))}
          </ul>
          <p>
            <code>tdbg fsck {shorten(run.path, 90)}</code> says more.
          </p>
        </Notice>
      )}
      <dl>
        <Fact name="Run" value={plain(run.path)} />
        <Fact name="Tensors" value={count(run.n_tensors)} />
        <Fact name="On disk" value={bytes(run.bytes)} />
        {run.cost !== null && <Fact name="Cost of capture" value={`steps take ${percent(run.cost)} longer`} />}
        <Fact name="Lost records" value={count(run.lost)} />
        <Fact name="Rules that judged" value={judged ? count(judged) : "none"} />
        {workers.length > 1 && <Fact name="Ranks" value={`${count(workers.length)}${unwell.length ? `; ${unwell.map(([n, s]) => `${n} ${s}`).join(", ")}` : ""}`} />}
        {run.attempts > 1 && <Fact name="Attempts" value={count(run.attempts)} />}
      </dl>
    </footer>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

export function findingsOf(run: Run, tensor: string): Finding[] {
  return run.findings.filter((each) => each.tensor === tensor);
}
