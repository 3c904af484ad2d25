/** Everything that rules found: worst first, with advice and where to look. */

import { useMemo } from "preact/hooks";
import { series, themed } from "../colors";
import { count, counted, plain, shorten, steps as stepsText } from "../format";
import { axisOf } from "../grid";
import { useRoute } from "../hooks";
import { LineChart } from "../line_chart";
import {
  Card,
  fieldOf,
  type Group,
  groups,
  Link,
  limitsOf,
  Mark,
  Measured,
  Notice,
  placeOf,
} from "../parts";
import { useGrid } from "../run_data";
import type { Run } from "../types";
import { FIELD_NAMES } from "./layers";
import { isJudged, JudgeButton, Progress } from "./verdict";

const MOST_TENSORS = 24;
/** What a rule's status says, in words. */
const SAID: Record<string, string> = {
  NoIssuesFound: "nothing found",
  IssuesFound: "found something",
  InProgress: "judging",
  Stopped: "stopped",
  Error: "failed",
};

export function FindingsScreen({ run, version }: { run: Run; version: number }) {
  const route = useRoute();
  const found = groups(run.findings).filter((group) => !route.find || group.rule === route.find);
  const all = found.flatMap((group) => group.findings);
  const following = all.filter((each) => each.cause).length;
  const judged = Object.entries(run.rules);
  const isBlind = ([, { status, message }]: (typeof judged)[number]) =>
    status === "NoIssuesFound" && message !== "";
  const applies = ([, rule]: (typeof judged)[number]) => rule.applies;
  const silent = judged.filter(isBlind);
  const blind = silent.filter(applies);
  const others = silent.filter((each) => !applies(each));
  return (
    <main class="findings">
      <header class="tensor-head">
        <h1>
          {route.find ? plain(route.find) : "Findings"}{" "}
          <span class="soft">
            {count(all.length)}
            {following > 0 && `, including ${counted(following, "consequence")}`}
          </span>
        </h1>
        {route.find && (
          <Link class="button" to={{ run: run.id, screen: "findings" }}>
            All findings
          </Link>
        )}
      </header>
      {!found.length && (
        <Notice
          title={judged.length ? run.verdict.sentence : "No rule has judged this run yet"}
          tone={run.verdict.tone}
        >
          {isJudged(run) && <Progress run={run} />}
          {!judged.length && !isJudged(run) && <JudgeButton run={run} />}
          {!judged.length && (
            <p>
              <code>tdbg check {shorten(run.path, 90)}</code> judges it now; <code>tdbg watch</code>{" "}
              does while it trains.
            </p>
          )}
        </Notice>
      )}
      {found.map((group) => (
        <FoundGroup
          key={`${group.rule}${group.severity}${group.over}`}
          run={run}
          group={group}
          version={version}
        />
      ))}
      {run.n_findings > run.findings.length && (
        <p class="soft">
          The first {count(run.findings.length)} of {count(run.n_findings)} are shown.
        </p>
      )}
      {judged.length > 0 && (
        <Card title="Rules that judge this run">
          <RuleList rules={judged.filter((each) => !isBlind(each))} />
          {blind.length > 0 && (
            <details>
              <summary>
                {count(blind.length)} had too little to judge by, or not all that they need
              </summary>
              <RuleList rules={blind} />
            </details>
          )}
          {others.length > 0 && (
            <details>
              <summary>{count(others.length)} do not apply to this training</summary>
              <RuleList rules={others} />
            </details>
          )}
        </Card>
      )}
    </main>
  );
}

function RuleList({ rules }: { rules: [string, { status: string; message: string }][] }) {
  return (
    <ul class="rules">
      {rules.map(([name, { status, message }]) => (
        <li key={name}>
          <b>{plain(name)}</b>{" "}
          <span class="soft">
            {plain(
              message && status === "NoIssuesFound"
                ? message
                : [SAID[status] ?? status, message].filter(Boolean).join(": "),
            )}
          </span>
        </li>
      ))}
    </ul>
  );
}

function FoundGroup({ run, group, version }: { run: Run; group: Group; version: number }) {
  const first = group.findings[0];
  const place = placeOf(run.id, first, run.last_step);
  const from = Number(place.from);
  const to = Number(place.to);
  const field = fieldOf(first);
  const isCurve = run.curves.includes(first.tensor);
  const grid = useGrid(
    first.of_time
      ? null
      : {
          path: isCurve ? "curve" : "envelope",
          run: run.id,
          name: first.tensor,
          ...(isCurve ? {} : { field }),
          from,
          to,
          most: 400,
        },
    group.over ? 0 : version,
  );
  const lines = useMemo(
    () => (grid.data ? [{ label: plain(first.tensor), color: series(0), grid: grid.data }] : []),
    [grid.data],
  );
  const limits = useMemo(
    () => limitsOf(group.findings.slice(0, 1), isCurve ? "mean" : field),
    [first],
  );
  const flags = useMemo(
    () => [{ from: first.first_step, to: first.last_step + 1, color: themed(first.severity) }],
    [first],
  );
  return (
    <Card class={`found ${group.severity}${group.over ? " over" : ""}`}>
      <div class="with-side">
        <div>
          <h2>
            <Mark tone={group.severity} size={18} /> {plain(group.rule)}
            <span class="soft">{group.over ? "over" : `since step ${count(group.first)}`}</span>
          </h2>
          {first.advice && (
            <p class="advice">
              <b>What to do</b> {plain(first.advice)}
            </p>
          )}
          <p>
            {plain(first.message)} <Measured finding={first} />
          </p>
          <ul class="tensors">
            {group.findings.slice(0, MOST_TENSORS).map((each) => (
              <li key={`${each.tensor}${each.first_step}`}>
                <Link to={placeOf(run.id, each, run.last_step)} title={plain(each.message)}>
                  {shorten(each.tensor, 56)}
                </Link>
                <span class="soft">{stepsText(each.first_step, each.last_step)}</span>
              </li>
            ))}
            {group.findings.length > MOST_TENSORS && (
              <li class="soft">and {count(group.findings.length - MOST_TENSORS)} more</li>
            )}
          </ul>
          {first.cause && (
            <p class="soft">
              follows from {plain(first.cause.rule)} in {shorten(first.cause.tensor, 60)}
            </p>
          )}
        </div>
        <div class="side evidence">
          {!first.of_time && (
            <p class="soft">{isCurve ? shorten(first.tensor, 40) : FIELD_NAMES[field]}</p>
          )}
          {!grid.error && !first.of_time && (
            <LineChart
              lines={lines}
              title={`Evidence: ${plain(first.tensor)}`}
              from={from}
              to={to}
              log={grid.data !== null && axisOf([grid.data], undefined, limits).isLog}
              gutter={60}
              interval={isCurve ? 1 : null}
              height={170}
              flags={flags}
              limits={limits}
            />
          )}
          <Link class="button filled" to={place}>
            Show me
          </Link>
        </div>
      </div>
    </Card>
  );
}
