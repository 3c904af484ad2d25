/** The screen TIME: where the time of a run went, why, and what to change. */
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { series } from "../colors";
import { bytes, count, counted, percent, plain } from "../format";
import { useRoute } from "../hooks";
import { LineChart } from "../line_chart";
import { Card, LineKeys, Link, Mark, Notice, Pending } from "../parts";
import { cursorOf, type Range, rangeOf } from "../run_data";
import { FindingsAxis, StepAxis } from "../step_axis";
import type { Run } from "../types";
import { Bands } from "./bands";
import { cellsOf, type Facts, gridOf, useGridOf, useTimes } from "./data";
import { LinearMap, Ramp } from "./linear_map";
import { LoaderCards } from "./loader";
import { Breakdowns, Job, MachineCard, Missing, OperatorCards, SlowSteps } from "./tables";
import { duration, span, upper } from "./words";

interface Shown {
  facts: Facts;
  range: Range;
  cursor: number | undefined;
}

export function TimeScreen({ run, version }: { run: Run; version: number }) {
  const route = useRoute();
  const range = rangeOf(run, route);
  const { facts, maps } = useTimes(run, range, version);
  const found = useMemo(() => run.findings.filter((each) => each.of_time), [run.findings]);
  if (!facts.data)
    return (
      <main class="time empty">
        <Pending error={facts.error} />
      </main>
    );
  if (facts.data.said || !facts.data.sentence)
    return (
      <main class="time">
        <Notice title={facts.data.said || "The profile has no step of training yet"} tone="info" />
        <MachineCard facts={facts.data.said ? NOTHING : facts.data} />
      </main>
    );
  const shown = { facts: facts.data, range, cursor: cursorOf(route) };
  return (
    <main class="time">
      <Sentence run={run} facts={facts.data} />
      <Card class="axis">
        <StepAxis run={run} range={range} findings={found} />
      </Card>
      <Card
        title="Where the time of a step goes"
        aside={<span class="soft">{throughput(facts.data)}</span>}
      >
        {maps.data ? (
          <Bands packed={maps.data} range={range} cursor={shown.cursor} />
        ) : (
          <Pending error={maps.error} />
        )}
        <Breakdowns breakdowns={facts.data.breakdowns} />
        {facts.data.remarks.map((each) => (
          <p key={each} class="soft">
            {plain(each)}.
          </p>
        ))}
        <Job facts={facts.data} />
      </Card>
      {maps.data && (
        <Usage {...shown} packed={maps.data}>
          {found.length > 0 && <FindingsAxis run={run} range={range} findings={found} />}
        </Usage>
      )}
      {facts.data.loaders.length > 0 && <Loading {...shown} packed={maps.data} />}
      {maps.data && facts.data.lateness && <Lateness {...shown} packed={maps.data} />}
      {maps.data && facts.data.memory.length > 0 && <Memory {...shown} packed={maps.data} />}
      <SlowSteps facts={facts.data} />
      <OperatorCards facts={facts.data} />
      <MachineCard facts={facts.data} />
      <Missing facts={facts.data} />
    </main>
  );
}

const NOTHING = { machine: [] } as unknown as Facts;

type WithMaps = Shown & { packed: NonNullable<ReturnType<typeof useTimes>["maps"]["data"]> };

function Sentence({ run, facts }: { run: Run; facts: Facts }) {
  const { change } = facts;
  return (
    <section class={`verdict ${change ? "warning" : "info"}`} aria-label="Where the time went">
      <Mark tone={change ? "warning" : "info"} size={30} />
      <div>
        <h1>{upper(facts.sentence)}.</h1>
        {change && (
          <p class="advice">
            <b>What to change first</b> {plain(change.text)}
          </p>
        )}
      </div>
      {change && (
        <Link class="button" to={{ run: run.id, screen: "findings", find: change.rule }}>
          {plain(change.rule)}
        </Link>
      )}
    </section>
  );
}

function throughput({ throughput: found }: Facts): string {
  if (!found) return "";
  const parts = [`${found.steps_per_s.toPrecision(3)} steps`];
  if (found.samples_per_s !== null) parts.push(`${count(Math.round(found.samples_per_s))} samples`);
  if (found.tokens_per_s !== null) parts.push(`${count(Math.round(found.tokens_per_s))} tokens`);
  return `${parts.join(", ")} a second`;
}

/** Cores and GPUs, with what stands above them. */
function Usage({ packed, range, cursor, children }: WithMaps & { children: ComponentChildren }) {
  const names = packed.header.usage_names as string[];
  const grid = useMemo(
    () =>
      cellsOf(
        packed,
        names,
        packed.arrays.usage,
        packed.arrays.usage_low,
        packed.arrays.usage_high,
      ),
    [packed],
  );
  if (!names.length) return null;
  return (
    <Card title="Cores and GPUs">
      {children}
      <LinearMap
        grid={grid}
        range={range}
        high={1}
        cursor={cursor}
        name="usage"
        what="How busy cores and GPUs were"
        text={percent}
        legend={<Ramp low="0 % busy" high="100 %" />}
      />
    </Card>
  );
}

function Loading({ facts, packed, range, cursor }: Shown & { packed: WithMaps["packed"] | null }) {
  const depth = useGridOf(packed, "depth", "batches ready");
  return <LoaderCards loaders={facts.loaders} depth={depth} range={range} cursor={cursor} />;
}

const LATENESS = {
  collectives: "how much later than the first rank each one called a collective operation",
  "own work": "how much longer than the fastest rank each one worked in a step",
};

function Lateness({ facts, packed, range, cursor }: WithMaps) {
  const { ranks, source } = facts.lateness!;
  const grid = useMemo(
    () => cellsOf(packed, packed.header.ranks as string[], packed.arrays.late),
    [packed],
  );
  const high = useMemo(() => {
    const known = Array.from(packed.arrays.late).filter((each) => !Number.isNaN(each));
    known.sort((a, b) => a - b);
    return Math.max(known[Math.floor(0.99 * (known.length - 1))] ?? 1, 1e-3);
  }, [packed]);
  const worst = [...ranks].sort((a, b) => b.median_ns - a.median_ns)[0];
  return (
    <Card
      title="Ranks that come late"
      aside={
        <span class="soft">
          {plain(worst.worker)} usually comes {duration(worst.median_ns)} late, and is the last in{" "}
          {percent(worst.last_share)}
        </span>
      }
    >
      <LinearMap
        grid={grid}
        range={range}
        high={high}
        cursor={cursor}
        name="lateness"
        what={`How late each rank came: ${LATENESS[source]}`}
        text={(ms) => duration(ms * 1e6)}
        legend={<Ramp low="0" high={`${duration(high * 1e6)} later`} />}
      />
      <p class="soft">{upper(LATENESS[source])}.</p>
    </Card>
  );
}

function Memory({ facts, packed, range, cursor }: WithMaps) {
  const names = packed.header.memory_names as string[];
  const lines = useMemo(
    () =>
      names.map((label, i) => ({
        label: plain(label),
        color: series(i),
        grid: gridOf(packed, `memory${i}`, label),
      })),
    [packed],
  );
  const limits = useMemo(
    () =>
      facts.memory
        .filter((each) => each.limit !== null && each.forecast)
        .map((each) => ({
          value: each.limit! / 1e9,
          label: `limit of ${plain(each.name)}: ${bytes(each.limit!)}`,
        })),
    [facts.memory],
  );
  return (
    <Card title="Memory, GB">
      <LineChart
        lines={lines}
        title="Memory in use, in GB"
        from={range.from}
        to={range.to}
        log={false}
        height={200}
        limits={limits}
        cursor={cursor}
        onRange={range.set}
        onReset={range.reset}
      />
      <p class="reading">
        <LineKeys lines={lines} />
        {facts.memory.map(
          ({ name, forecast }) =>
            forecast && (
              <strong key={name}>
                {upper(plain(name))} memory grows by {bytes(forecast.slope)} a second and reaches{" "}
                {bytes(forecast.limit)} in {span(forecast.seconds)}.{" "}
              </strong>
            ),
        )}
        {!facts.memory.some((each) => each.forecast) && (
          <span class="soft">
            {counted(names.length, "memory").replace("memorys", "memories")}; none grows for certain
          </span>
        )}
      </p>
    </Card>
  );
}
