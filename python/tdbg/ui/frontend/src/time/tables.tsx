/** Where the time went as bars and tables: modes, ranks, slow steps, operators, lines. */
import type { ComponentChildren } from "preact";
import { phaseColor } from "../colors";
import { bytes, count, counted, number, percent, plain, shorten } from "../format";
import { setCursor } from "../hooks";
import { Card, LineKeys, Scroll } from "../parts";
import type { Breakdown, Facts } from "./data";
import { duration, span, upper } from "./words";

/** The phases by their names on the wire: their numbers, which are never changed. */
const PHASES = (
  "other data_wait copy forward backward communication optimizer gc compile checkpoint " +
  "evaluation capture compute"
).split(" ");

function colorOf(phase: string): string {
  return phaseColor(Math.max(0, PHASES.indexOf(phase)));
}

/** A bar for each mode and rank, divided into phases. */
export function Breakdowns({ breakdowns }: { breakdowns: Breakdown[] }) {
  return (
    <div class="breakdowns">
      {breakdowns.map((each) => (
        <div key={each.title} class="breakdown">
          <span>{plain(each.title)}</span>
          <Bar
            parts={each.phases.map(({ name, phase, share }) => ({
              name,
              share,
              color: colorOf(phase),
            }))}
          />
          <span class="soft">
            {duration(each.median_ns)}, 95 % within {duration(each.p95_ns)}
          </span>
        </div>
      ))}
    </div>
  );
}

interface Part {
  name: string;
  share: number;
  color: string;
}

function Bar({ parts }: { parts: Part[] }) {
  const said = parts.map(({ name, share }) => `${name} ${percent(share)}`).join(", ");
  return (
    <div class="shares" role="img" aria-label={said} title={said}>
      {parts.map(({ name, share, color }) => (
        <i key={name} style={{ width: `${100 * share}%`, background: color }}>
          {share > 0.08 && percent(share)}
        </i>
      ))}
    </div>
  );
}

/** The phases of the job, and how much of it was training. */
export function Job({ facts }: { facts: Facts }) {
  const all = facts.job.reduce((sum, each) => sum + each.seconds, 0);
  const parts = facts.job.map(({ name, share }) => ({ name, share, color: jobColor(name, facts) }));
  return (
    <div class="breakdowns">
      <div class="breakdown">
        <span>the job</span>
        <Bar parts={parts} />
        <span class="soft">
          {span(all)}
          {facts.goodput !== null && `, ${percent(facts.goodput)} of it computing`}
        </span>
      </div>
      <p class="reading">
        <LineKeys
          lines={parts
            .filter(({ name }) => OF_JOB.includes(name))
            .map(({ name, color }) => ({ label: name, color }))}
        />
      </p>
    </div>
  );
}

/** Parts of a job that are no phase of a step. */
const OF_JOB = ["start-up", "computing", "after the last step"];

function jobColor(name: string, { breakdowns }: Facts): string {
  if (name === "computing") return colorOf("backward");
  if (name === "start-up") return colorOf("compile");
  const found = breakdowns.flatMap(({ phases }) => phases).find((each) => each.name === name);
  return colorOf(found?.phase ?? "other");
}

/** A table of text and numbers; the first columns are text. */
function Table({
  label,
  heads,
  rows,
  texts = 1,
}: {
  label: string;
  heads: string[];
  rows: ComponentChildren[][];
  texts?: 1 | 3;
}) {
  return (
    <Scroll label={label}>
      <table class={`figures texts${texts}`}>
        <thead>
          <tr>
            {heads.map((each) => (
              <th key={each}>{each}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((cells, i) => (
            <tr key={i}>
              {cells.map((cell, j) => (
                <td key={heads[j]}>{cell}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

export function SlowSteps({ facts }: { facts: Facts }) {
  if (!facts.n_slow) return null;
  return (
    <Card title={`${counted(facts.n_slow, "step")} took much longer than the others`}>
      <Table
        label="Slow steps"
        heads={["step", "rank", "took", "more than usual", "in"]}
        rows={facts.slow.map((each) => [
          <button type="button" class="small" onClick={() => setCursor(each.step)}>
            {count(each.step)}
          </button>,
          each.worker,
          duration(each.duration_ns),
          duration(each.excess_ns),
          each.phase,
        ])}
      />
    </Card>
  );
}

export function OperatorCards({ facts }: { facts: Facts }) {
  return (
    <>
      {facts.operators.map((each) => (
        <Card key={each.device} title={`Operators on ${plain(each.device)}, newest window`}>
          <Table
            label="Operators"
            heads={["operator", "calls", "self time", "share"]}
            rows={each.listed.map((row) => [
              <code>{shorten(row.name, 70)}</code>,
              count(row.calls),
              duration(row.self_ns),
              percent(row.share),
            ])}
          />
          {each.n_others > 0 && (
            <p class="soft">{counted(each.n_others, "other operator")} below 2 %</p>
          )}
        </Card>
      ))}
      {facts.lines.length > 0 && (
        <Card title="Python lines by phase">
          <Table
            label="Python lines"
            texts={3}
            heads={["phase", "line", "called by", "of the phase", "of all"]}
            rows={facts.lines.map((each) => [
              each.phase,
              <code title={each.place}>{shorten(each.short_place, 60)}</code>,
              each.short_caller && <code>{shorten(each.short_caller, 60)}</code>,
              percent(each.share),
              percent(each.share_of_all),
            ])}
          />
        </Card>
      )}
    </>
  );
}

/** What was measured of the machine, in percentiles. */
export function MachineCard({ facts }: { facts: Facts }) {
  if (!facts.machine.length) return null;
  const hasNodes = facts.machine.some((each) => each.node);
  return (
    <Card title="The machine in figures">
      <Table
        label="The machine"
        heads={["metric", ...(hasNodes ? ["node"] : []), "least", "median", "95 %", "99 %", "most"]}
        rows={facts.machine.map((each) => [
          plain(each.name),
          ...(hasNodes ? [plain(each.node)] : []),
          ...[each.least, each.p50, each.p95, each.p99, each.greatest].map((value) =>
            amount(value, each.unit),
          ),
        ])}
      />
      <p class="soft">Energy: {facts.energy}.</p>
    </Card>
  );
}

/** What the profile cost, and what it does not hold. */
export function Missing({ facts }: { facts: Facts }) {
  if (!facts.own_cost && !facts.lacks.length) return null;
  return (
    <Card title="Cost of profiling, and what is missing">
      {facts.own_cost && <p>{facts.own_cost.sentence}.</p>}
      <ul>
        {facts.lacks.map((each) => (
          <li key={each}>{upper(plain(each))}.</li>
        ))}
      </ul>
    </Card>
  );
}

function amount(value: number, unit: string): string {
  if (unit === "share") return percent(value);
  if (unit === "bytes") return bytes(value);
  return unit === "bytes/s" ? `${bytes(value)}/s` : `${number(value)} ${unit}`;
}
