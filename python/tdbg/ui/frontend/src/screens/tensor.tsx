/** One tensor: every row of it, its distribution over steps, and what is wrong with it. */
import { useMemo } from "preact/hooks";
import { getArrays, getJson, type Packed } from "../api";
import { series, themed } from "../colors";
import { CaptureButton } from "../controls";
import { count, number, percent, plain, shape, shorten } from "../format";
import { Heat } from "../heat";
import { go, useAnswer, useRoute } from "../hooks";
import { LineChart } from "../line_chart";
import { Card, Chips, Link, Mark, Notice } from "../parts";
import type { Grid } from "../grid";
import { rangeOf, useGrid, useTensors } from "../run_data";
import type { Field, Finding, Lost, Row, Run, Tensor } from "../types";
import { FIELD_NAMES, findingsOf } from "./run";

const FIELDS: Field[] = ["rms", "l2", "abs_max", "std", "mean", "zero_share"];
const COLUMNS = ["mean", "std", "rms", "min", "max", "zero", "nan", "count"];
const MOST_ROWS = 40;

export function TensorScreen({ run, version }: { run: Run; version: number }) {
  const route = useRoute();
  const tensors = useTensors(run);
  const name = route.tensor ?? "";
  const tensor = tensors.find((each) => each.name === name);
  const peers = useMemo(() => tensors.filter((each) => each.role === tensor?.role), [tensors, tensor]);
  const range = rangeOf(run, route);
  const field = (FIELDS.includes(route.field as Field) ? route.field : "rms") as Field;
  const grid = useGrid(tensor ? { path: "envelope", run: run.id, name, field, from: range.from, to: range.to, most: 1000 } : null, version);
  const isLog = route.axis ? route.axis === "log" : grid.data !== null && spans(grid.data) > 30;
  const found = findingsOf(run, name);
  const lines = useMemo(() => (grid.data ? [{ label: FIELD_NAMES[field], color: series(0), grid: grid.data }] : []), [grid.data, field]);
  const flags = useMemo(() => found.map((each) => ({ from: each.first_step, to: each.last_step + 1, color: themed(each.severity) })), [run.findings, name]);
  const at = route.at !== undefined && /^\d{1,15}$/.test(route.at) ? Number(route.at) : undefined;
  if (!tensors.length) return <main class="empty soft">reading …</main>;
  if (!tensor)
    return (
      <main>
        <Notice title="There is no such tensor in this run" tone="warning">
          <p>
            <code>{shorten(name, 200)}</code>
          </p>
          <Link to={{ run: run.id }}>Back to the run</Link>
        </Notice>
      </main>
    );
  const place = peers.indexOf(tensor);
  const bad = grid.data ? grid.data.bad.reduce((a, b) => a + b, 0) : 0;
  return (
    <main class="tensor">
      <header class="tensor-head">
        <div>
          <h1>{shorten(tensor.name, 160)}</h1>
          <p class="soft">
            {[tensor.role.replace("_", " "), tensor.dtype, shape(tensor.shape), tensor.module && plain(tensor.module)].filter(Boolean).join(" · ")}
          </p>
        </div>
        <nav aria-label="Tensors of the same role">
          <Neighbour run={run} tensor={peers[place - 1]} text="← previous" />
          <Neighbour run={run} tensor={peers[place + 1]} text="next →" />
        </nav>
      </header>
      {found.map((each) => (
        <FindingNote key={`${each.rule}${each.first_step}`} finding={each} />
      ))}
      <Card
        title={`${FIELD_NAMES[field]} over steps`}
        aside={
          <div class="settings">
            <Chips label="Statistic" options={FIELDS} value={field} names={FIELD_NAMES} onChange={(value) => go({ field: value === "rms" ? undefined : value, axis: undefined }, { quiet: true })} />
            <Chips label="Axis" options={["linear", "log"] as const} value={isLog ? "log" : "linear"} onChange={(value) => go({ axis: value }, { quiet: true })} />
          </div>
        }
      >
        {grid.error ? <Notice title="It cannot be drawn" tone="error">{plain(grid.error.message)}</Notice> : <LineChart lines={lines} title={`${FIELD_NAMES[field]} of ${plain(name)}`} from={range.from} to={range.to} log={isLog} height={280} cursor={at} flags={flags} onRange={range.set} onReset={range.reset} onCursor={(value) => go({ at: value === undefined ? undefined : String(value) }, { quiet: true })} />}
        <p class="reading">
          {bad > 0 ? <strong class="bad">NaN or Inf in {count(bad)} rows</strong> : <span class="soft">line: mean · band: least to greatest of a column · nothing is left out</span>}
          {(route.from || route.to) && (
            <button type="button" class="small" onClick={range.reset}>
              Show all steps
            </button>
          )}
        </p>
      </Card>
      <Distribution run={run} tensor={tensor} from={range.from} to={range.to} version={version} />
      <Rows run={run} tensor={tensor} at={at ?? range.to - 1} from={range.from} version={version} />
    </main>
  );
}

/** How many times the least positive value the greatest is. */
function spans(grid: Grid): number {
  let low = Infinity;
  let high = 0;
  for (let j = 0; j < grid.columns; j++) {
    if (!grid.rows[j] || Number.isNaN(grid.low[j])) continue;
    if (grid.low[j] < 0) return 1;
    if (grid.low[j] > 0) low = Math.min(low, grid.low[j]);
    high = Math.max(high, grid.high[j]);
  }
  return high / low;
}

function Neighbour({ run, tensor, text }: { run: Run; tensor: Tensor | undefined; text: string }) {
  const route = useRoute();
  if (!tensor) return <span class="soft">{text}</span>;
  return (
    <Link class="button" title={plain(tensor.name)} to={{ run: run.id, screen: "tensor", tensor: tensor.name, from: route.from, to: route.to, at: route.at, field: route.field }}>
      {text}
    </Link>
  );
}

export function FindingNote({ finding }: { finding: Finding }) {
  return (
    <section class={`note ${finding.severity}${finding.over ? " over" : ""}`}>
      <Mark tone={finding.severity} size={18} />
      <div>
        <h2>
          {plain(finding.rule)} <span class="soft">{finding.over ? `from step ${count(finding.first_step)} to ${count(finding.last_step)}, over` : `since step ${count(finding.first_step)}`}</span>
        </h2>
        <p>{plain(finding.message)}</p>
        {finding.advice && (
          <p class="advice">
            <b>What to do</b> {plain(finding.advice)}
          </p>
        )}
      </div>
    </section>
  );
}

function Distribution({ run, tensor, from, to, version }: { run: Run; tensor: Tensor; from: number; to: number; version: number }) {
  const key = `histograms ${run.id} ${tensor.name} ${from}`;
  const answer = useAnswer<Packed>(key, version * 1e7 + to, (signal) => getArrays("histograms", { run: run.id, name: tensor.name, start: from, stop: to, columns: 100, bins: 64 }, signal));
  const packed = answer.data;
  if (!packed) return null;
  const lost = (packed.header.lost as Lost[]) ?? [];
  if (!packed.arrays.steps.length)
    return (
      <Card title="Distribution">
        <div class="empty">
          <p>No histogram and no value of it was captured in these steps.</p>
          <p class="soft">
            Histograms come with <code>ReductionConfig(save_histogram=True)</code>, values with <code>SaveConfig(save_interval=100)</code>.
          </p>
          {run.may_control && <CaptureButton run={run} tensor={tensor.name} label="Capture its values for 50 steps" />}
        </div>
      </Card>
    );
  return (
    <Card title="Distribution over steps" aside={<span class="soft">{count(packed.arrays.steps.length)} histograms</span>}>
      <div class="with-side">
        <Heat packed={packed} from={from} to={to} height={260} />
        {lost.length > 0 && (
          <div class="side">
            <h3>What a format would lose</h3>
            <table>
              <thead>
                <tr>
                  <th>format</th>
                  <th>to zero</th>
                  <th>beyond</th>
                </tr>
              </thead>
              <tbody>
                {lost.map((each) => (
                  <tr key={each.dtype}>
                    <td>{each.dtype}</td>
                    <td>{percent(Number(each.underflow ?? 0))}</td>
                    <td>{percent(Number(each.overflow ?? 0))}</td>
                  </tr>
                ))}
              </tbody>
            </table>
            <p class="soft">shares of the elements from step {count(Number(packed.header.lost_step))}</p>
          </div>
        )}
      </div>
    </Card>
  );
}

/** The rows around the cursor, exactly as they were recorded. */
function Rows({ run, tensor, at, from, version }: { run: Run; tensor: Tensor; at: number; from: number; version: number }) {
  const start = Math.max(from, at - MOST_ROWS / 2);
  const answer = useAnswer<{ rows: Row[] }>(`rows ${run.id} ${tensor.name} ${start}`, version, (signal) => getJson("rows", { run: run.id, name: tensor.name, start, stop: start + 10 * MOST_ROWS }, signal));
  const rows = (answer.data?.rows ?? []).slice(0, MOST_ROWS);
  if (!rows.length) return null;
  const save = () => {
    const names = Object.keys(rows[0]);
    const text = [names.join(","), ...rows.map((row) => names.map((each) => String(row[each] ?? "")).join(","))].join("\n");
    const link = document.createElement("a");
    link.href = `data:text/csv;charset=utf-8,${encodeURIComponent(text)}`;
    link.download = "rows.csv";
    link.click();
  };
  return (
    <Card
      title="Exact rows"
      aside={
        <button type="button" class="small" onClick={save}>
          Save as CSV
        </button>
      }
    >
      <div class="scroll" tabIndex={0} role="region" aria-label="Exact rows">
        <table class="rows">
          <thead>
            <tr>
              <th>step</th>
              {COLUMNS.map((each) => (
                <th key={each}>{each}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.step} class={row.step === at ? "current" : ""}>
                <td>{count(row.step)}</td>
                {COLUMNS.map((each) => (
                  <td key={each} class={each === "nan" && Number(row.nan) > 0 ? "bad" : ""}>
                    {["zero", "nan", "count"].includes(each) ? count(Number(row[each])) : number(row[each])}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}
