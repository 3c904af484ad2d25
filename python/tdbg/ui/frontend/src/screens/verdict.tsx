/** What is wrong with a run in one sentence, and what to do about it. */
import { useState } from "preact/hooks";
import { post } from "../api";
import { count, counted, plain, shorten } from "../format";
import { groups, Link, Mark, placeOf } from "../parts";
import type { Run } from "../types";

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
        {run.verdict.tone === "starting" && run.state === "running" && (
          <p class="measured">
            The process is alive and has opened the run. Charts appear when the first step ends.
          </p>
        )}
        {isJudged(run) && <Progress run={run} />}
        {run.verdict.tone === "unjudged" && !isJudged(run) && (
          <p class="advice">
            <b>What to do</b> judge it{run.may_control ? " here, or with" : " with"}{" "}
            <code>tdbg check {shorten(run.path, 80)}</code>, or while it trains{" "}
            <code>tdbg watch {shorten(run.path, 80)}</code>
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
        run.verdict.tone === "unjudged" && !isJudged(run) && <JudgeButton run={run} />
      )}
    </section>
  );
}

/** Whether the server judges the run now, or will when it has judged another. */
export function isJudged({ judging }: Pick<Run, "judging">): boolean {
  return judging?.state === "waiting" || judging?.state === "judging";
}

/** How far the server is. */
export function Progress({ run }: { run: Run }) {
  const { state, steps } = run.judging!;
  const all = Math.max(run.recorded, steps);
  return (
    <div class="measured" role="status">
      <p>
        {state === "waiting"
          ? "The server will judge this run when it has judged another."
          : `The server is judging this run: ${count(steps)} of ${counted(all, "recorded step")}.`}
      </p>
      <progress aria-label="Judged steps" max={all} value={state === "waiting" ? 0 : steps} />
    </div>
  );
}

/** Has the server judge the run, as tdbg check does; what is found appears as it is found. */
export function JudgeButton({ run }: { run: Run }) {
  const [error, setError] = useState("");
  if (!run.may_control || !run.recorded) return null;
  const why = error || (run.judging?.state === "failed" && run.judging.reason);
  return (
    <div class="judge" role="status">
      <button
        type="button"
        class="filled"
        onClick={() =>
          post("judge", { run: run.id }, {}).then(
            () => setError(""),
            (failure) => setError(failure.message),
          )
        }
      >
        Judge now
      </button>
      {why && <p class="bad">{plain(why)}</p>}
    </div>
  );
}
