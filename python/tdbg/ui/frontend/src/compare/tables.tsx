import { getJson } from "../api";
import { count, exact, percent, plain, shorten } from "../format";
import { useAnswer } from "../hooks";
import { Card, Link, Mark, Scroll, State } from "../parts";
import type { Compared } from "./curves";

export function Short({ runs }: { runs: Compared[] }) {
  return (
    <Scroll label="Runs in short">
      <table class="rows wide">
        <thead>
          <tr>
            <th>run</th>
            <th>state</th>
            <th>steps</th>
            <th>cost</th>
            <th>verdict</th>
          </tr>
        </thead>
        <tbody>
          {runs.map(({ run, color }) => (
            <tr key={run.id}>
              <td>
                <i class="swatch" style={{ background: color }} />{" "}
                <Link to={{ run: run.id }}>{plain(run.name)}</Link>
              </td>
              <td>
                <State status={run.state} stopped={run.stopped} />
              </td>
              <td>{count(run.steps)}</td>
              <td>{run.cost.is_telling ? `+${percent(run.cost.share)}` : "–"}</td>
              <td class="text">
                <Mark tone={run.verdict.tone} size={13} />{" "}
                {plain(run.verdict.sentence.replace(/^[^.]*\. /, ""))}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

type Told = string | number | [number, number] | null;

interface Differing {
  facts: { name: string; values: Told[] }[];
  settings: { name: string; values: Told[] }[];
  n_same: number;
  n_more: number;
}

/** What the runs were set up with, where it is not the same. */
export function Differences({ runs }: { runs: Compared[] }) {
  const key = `differences ${runs.map(({ run }) => `${run.id} ${run.state} ${run.attempts} ${run.steps > 0}`).join()}`;
  const { data, error } = useAnswer<Differing>(key, 0, (signal) =>
    getJson<Differing>("differences", { run: runs.map(({ run }) => run.id) }, signal),
  );
  if (!data) return error ? <p class="bad">{plain(error.message)}</p> : null;
  return (
    <Card
      title="Differences"
      class="differences"
      aside={
        data.n_same > 0 && <span class="soft">{count(data.n_same)} settings are the same</span>
      }
    >
      {data.settings.length === 0 && <p>All recorded settings are the same.</p>}
      <Scroll label="Differences">
        <table class="rows wide">
          <thead>
            <tr>
              <th>setting</th>
              {runs.map(({ run }) => (
                <th key={run.id}>{shorten(run.name, 30)}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {[...data.settings, ...data.facts].map(({ name, values }) => (
              <tr key={name}>
                <td class="text">{shorten(name, 60)}</td>
                {values.map((value, i) => (
                  <td key={i} class="text">
                    {told(value)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {data.n_more > 0 && <p class="soft">{count(data.n_more)} more are not listed.</p>}
    </Card>
  );
}

function told(value: Told): string {
  if (value === null) return "–";
  if (Array.isArray(value)) return `${exact(value[0])} to ${exact(value[1])}`;
  return typeof value === "number" ? exact(value) : shorten(value, 120);
}
