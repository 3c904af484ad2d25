/** One tensor: every row of it, its distribution over steps, and what is wrong with it. */

import { useMemo, useState } from "preact/hooks";
import { getArrays, getJson, type Packed } from "../api";
import { series, themed } from "../colors";
import { CaptureButton } from "../controls";
import { Elements } from "../elements";
import { count, counted, exact, percent, plain, shape, shorten } from "../format";
import { axisOf } from "../grid";
import { Heat } from "../heat";
import { adjust, setCursor, useAnswer, useRoute } from "../hooks";
import { AxisNote, LineChart } from "../line_chart";
import {
  AxisChips,
  Card,
  Chips,
  Link,
  limitsOf,
  Mark,
  Measured,
  Notice,
  Pending,
  Scroll,
} from "../parts";
import { RankSelect, Ranks } from "../ranks";
import { cursorOf, hasRanks, intervalOf, rangeOf, rankOf, useGrid, useTensors } from "../run_data";
import type { Field, Finding, Lost, Row, Run, Tensor } from "../types";
import { FIELD_NAMES, FIELDS } from "./layers";

const COLUMNS = ["mean", "std", "rms", "min", "max", "zero", "nan", "count"];
/** Left of the charts of this screen, whose names are short. */
const GUTTER = 96;
const MOST_SAVED = 100_000;

export function TensorScreen({ run, version }: { run: Run; version: number }) {
  const route = useRoute();
  const tensors = useTensors(run);
  const name = route.tensor ?? "";
  const tensor = tensors.find((each) => each.name === name);
  const peers = useMemo(
    () => tensors.filter((each) => each.role === tensor?.role),
    [tensors, tensor],
  );
  const range = rangeOf(run, route);
  const field = (FIELDS.includes(route.field as Field) ? route.field : "rms") as Field;
  const rank = rankOf(run, route);
  const grid = useGrid(
    tensor
      ? {
          path: "envelope",
          run: run.id,
          name,
          field,
          worker: rank,
          from: range.from,
          to: range.to,
          most: 1000,
        }
      : null,
    version,
  );
  const found = findingsOf(run, name);
  const limits = useMemo(() => limitsOf(found, field), [run.findings, name, field]);
  const axis = useMemo(
    () => axisOf(grid.data ? [grid.data] : [], route, limits),
    [grid.data, route.axis, limits],
  );
  const lines = useMemo(
    () => (grid.data ? [{ label: FIELD_NAMES[field], color: series(0), grid: grid.data }] : []),
    [grid.data, field],
  );
  const flags = useMemo(
    () =>
      found.map((each) => ({
        from: each.first_step,
        to: each.last_step + 1,
        color: themed(each.severity),
      })),
    [run.findings, name],
  );
  const at = cursorOf(route);
  if (!tensors.length) return <main class="empty soft">reading …</main>;
  if (!tensor)
    return (
      <main>
        <Notice title="This run has no such tensor" tone="warning">
          <p>
            <code>{shorten(name, 200)}</code>
          </p>
          <Link to={{ run: run.id }}>Back to the run</Link>
        </Notice>
      </main>
    );
  const place = peers.indexOf(tensor);
  const step = at ?? range.to - 1;
  const isNumber = tensor.shape?.every((n) => n === 1) ?? false;
  const bad = grid.data ? grid.data.bad.reduce((a, b) => a + b, 0) : 0;
  return (
    <main class="tensor">
      <header class="tensor-head">
        <div>
          <h1>{shorten(tensor.name, 160)}</h1>
          <p class="soft">
            {[
              tensor.role.replace("_", " "),
              tensor.dtype,
              shape(tensor.shape),
              tensor.module && plain(tensor.module),
            ]
              .filter(Boolean)
              .join(" · ")}
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
        title={`${FIELD_NAMES[field]} over steps${rank ? `, ${plain(rank)}` : ""}`}
        aside={
          <div class="settings">
            {hasRanks(run) && <RankSelect run={run} rank={rank} />}
            <Chips
              label="Statistic"
              options={FIELDS}
              value={field}
              names={FIELD_NAMES}
              onChange={(value) =>
                adjust({ field: value === "rms" ? undefined : value, axis: undefined })
              }
            />
            <AxisChips isLog={axis.isLog} />
          </div>
        }
      >
        <LineChart
          error={grid.error}
          lines={lines}
          title={`${FIELD_NAMES[field]} of ${plain(name)}`}
          from={range.from}
          to={range.to}
          log={axis.isLog}
          interval={intervalOf(run, tensor.role)}
          gutter={GUTTER}
          height={280}
          cursor={at}
          flags={flags}
          limits={limits}
          onRange={range.set}
          onReset={range.reset}
          onCursor={setCursor}
        />

        <p class="reading">
          {bad > 0 ? (
            <strong class="bad">NaN or Inf in {count(bad)} rows</strong>
          ) : (
            <span class="soft">
              line: mean · band: minimum to maximum of a column · nothing is left out
            </span>
          )}
          <AxisNote axis={axis} lines={lines} />
          {(route.from || route.to) && (
            <button type="button" class="small" onClick={range.reset}>
              Show all steps
            </button>
          )}
        </p>
      </Card>
      {hasRanks(run) && (
        <Ranks
          run={run}
          name={name}
          field={field}
          label={FIELD_NAMES[field]}
          range={range}
          cursor={at}
          at={step}
          log={axis.isLog}
          version={version}
        />
      )}
      {!isNumber && (
        <Distribution
          run={run}
          tensor={tensor}
          worker={rank}
          from={range.from}
          to={range.to}
          at={at}
          version={version}
          isDue={grid.data !== null || grid.error !== null}
        />
      )}
      <Elements
        run={run}
        name={name}
        worker={rank}
        at={step}
        version={at === undefined ? version : 0}
      />
      <Rows
        run={run}
        tensor={tensor}
        worker={rank}
        at={step}
        from={range.from}
        to={range.to}
        version={version}
      />
    </main>
  );
}

function Neighbour({ run, tensor, text }: { run: Run; tensor: Tensor | undefined; text: string }) {
  const route = useRoute();
  if (!tensor) return <span class="soft">{text}</span>;
  return (
    <Link
      class="button"
      title={plain(tensor.name)}
      to={{
        run: run.id,
        screen: "tensor",
        tensor: tensor.name,
        from: route.from,
        to: route.to,
        at: route.at,
        field: route.field,
        rank: route.rank,
      }}
    >
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
          {plain(finding.rule)}{" "}
          <span class="soft">
            {finding.over
              ? `from step ${count(finding.first_step)} to ${count(finding.last_step)}, over`
              : `since step ${count(finding.first_step)}`}
          </span>
        </h2>
        <p>
          {plain(finding.message)} <Measured finding={finding} />
        </p>
        {finding.advice && (
          <p class="advice">
            <b>What to do</b> {plain(finding.advice)}
          </p>
        )}
      </div>
    </section>
  );
}

function Distribution({
  run,
  tensor,
  worker,
  from,
  to,
  at,
  version,
  isDue,
}: {
  run: Run;
  tensor: Tensor;
  worker: string | undefined;
  from: number;
  to: number;
  at: number | undefined;
  version: number;
  /** Whether the chart above is there: it comes first. */
  isDue: boolean;
}) {
  const key = isDue ? `histograms ${run.id} ${tensor.name} ${worker} ${from} ${at}` : "";
  const answer = useAnswer<Packed>(key, version * 1e7 + to, (signal) =>
    getArrays(
      "histograms",
      { run: run.id, name: tensor.name, worker, start: from, stop: to, columns: 128, bins: 64, at },
      signal,
    ),
  );
  const packed = answer.data;
  if (!packed)
    return (
      <Card title="Distribution over steps">
        <div class="empty heat-room">
          <Pending error={answer.error} />
        </div>
      </Card>
    );
  const lost = (packed.header.lost as Lost[]) ?? [];
  if (!packed.arrays.steps.length)
    return (
      <Card title="Distribution">
        <div class="empty">
          <p>No histogram or value of this tensor was captured in these steps.</p>
          <p class="soft">
            Capture histograms with <code>Hook(save_histogram=True)</code>, values with{" "}
            <code>SaveConfig(save_interval=100)</code>.
          </p>
          {run.may_control && (
            <CaptureButton run={run} tensor={tensor.name} label="Capture its values for 50 steps" />
          )}
        </div>
      </Card>
    );
  return (
    <Card
      title="Distribution over steps"
      aside={<span class="soft">{counted(Number(packed.header.n_steps), "histogram")}</span>}
    >
      <div class="with-side">
        <Heat packed={packed} from={from} to={to} height={260} left={GUTTER} />
        {lost.length > 0 && (
          <div class="side">
            <h3>What each format would lose</h3>
            <table>
              <thead>
                <tr>
                  <th>format</th>
                  <th>to zero</th>
                  <th>to infinity</th>
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
            <p class="soft">share of elements at step {count(Number(packed.header.lost_step))}</p>
          </div>
        )}
      </div>
    </Card>
  );
}

/** The rows around the cursor, exactly as they were recorded. */
function Rows({
  run,
  tensor,
  worker,
  at,
  from,
  to,
  version,
}: {
  run: Run;
  tensor: Tensor;
  worker: string | undefined;
  at: number;
  from: number;
  to: number;
  version: number;
}) {
  const [saved, setSaved] = useState("");
  const answer = useAnswer<{ rows: Row[] }>(
    `rows ${run.id} ${tensor.name} ${worker} ${from} ${to} ${at}`,
    version,
    (signal) =>
      getJson(
        "rows",
        { run: run.id, name: tensor.name, worker, start: from, stop: to, around: at },
        signal,
      ),
  );
  const rows = answer.data?.rows ?? [];
  if (!rows.length) return null;
  const save = async () => {
    const all: Row[] = [];
    try {
      for (let next = from; ; next = all[all.length - 1].step + 1) {
        const { rows: more, n_steps } = await getJson<{ rows: Row[]; n_steps: number }>("rows", {
          run: run.id,
          name: tensor.name,
          worker,
          start: next,
          stop: to,
        });
        all.push(...more);
        setSaved(`${count(all.length)} rows`);
        if (!more.length || more.length >= n_steps || all.length >= MOST_SAVED) break;
      }
    } catch (failure) {
      return setSaved((failure as Error).message);
    }
    const names = Object.keys(all[0]);
    const text = [
      names.join(","),
      ...all.map((row) => names.map((each) => String(row[each] ?? "")).join(",")),
    ].join("\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = "rows.csv";
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return (
    <Card
      title="Exact rows"
      aside={
        <span class="settings">
          <span class="soft" role="status">
            {saved}
          </span>
          <button
            type="button"
            class="small"
            title="All rows of the range"
            onClick={() => void save()}
          >
            Save as CSV
          </button>
        </span>
      }
    >
      <Scroll label="Exact rows">
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
              <tr
                key={row.global_step}
                class={row.step === at ? "current" : ""}
                title={`${row.mode} step ${count(row.mode_step ?? 0)}, step ${count(row.global_step)} of all modes`}
              >
                <td>{count(row.step)}</td>
                {COLUMNS.map((each) => (
                  <td key={each} class={each === "nan" && Number(row.nan) > 0 ? "bad" : ""}>
                    {exact(row[each])}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Card>
  );
}

function findingsOf(run: Run, tensor: string): Finding[] {
  return run.findings.filter((each) => each.tensor === tensor);
}
