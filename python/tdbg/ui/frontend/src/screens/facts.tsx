import { bytes, compareNames, count, counted, percent, plain, shorten } from "../format";
import { Notice } from "../parts";
import type { Run } from "../types";

export function Facts({ run }: { run: Run }) {
  const workers = Object.entries(run.workers).sort(([a], [b]) => compareNames(a, b));
  const unwell = workers.filter(([, state]) => state !== workers[0]?.[1]);
  const judged = Object.keys(run.rules).length;
  return (
    <footer class="facts">
      {run.problem_list.length > 0 && (
        <Notice
          title={`${counted(run.damaged_files, "problem")} with the files of this run; you see the rest`}
          tone="warning"
        >
          <ul>
            {run.problem_list.slice(0, 5).map((each, i) => (
              <li key={i}>
                {plain(each.kind)}: {each.file && <code>{plain(each.file)}</code>}{" "}
                {plain(each.message)}
              </li>
            ))}
          </ul>
          <p>
            <code>tdbg fsck {shorten(run.path, 90)}</code> checks every byte.
          </p>
        </Notice>
      )}
      {run.lost_records.text && (
        <Notice
          title="What this run did not record"
          tone={run.lost_records.in_order ? "info" : "warning"}
        >
          <p>{plain(run.lost_records.text)}</p>
        </Notice>
      )}
      <dl>
        <Fact name="Run" value={plain(run.path)} />
        <Fact name="Tensors" value={count(run.n_tensors)} />
        {run.coverage.text && !run.coverage.advice && (
          <Fact name="Recorded" value={plain(run.coverage.text)} />
        )}
        <Fact name="On disk" value={bytes(run.bytes)} />
        {run.cost.is_telling && (
          <Fact name="Cost of capture" value={`steps take ${percent(run.cost.share)} longer`} />
        )}
        <Fact name="Lost records" value={count(run.lost_records.records)} />
        <Fact name="Rules that judged" value={judged ? count(judged) : "none"} />
        {workers.length > 1 && (
          <Fact
            name="Ranks"
            value={`${count(workers.length)}${unwell.length ? `; ${unwell.map(([n, s]) => `${n} ${s}`).join(", ")}` : ""}`}
          />
        )}
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
