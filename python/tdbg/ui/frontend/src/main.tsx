/** The page: what the address says is shown, whatever happens meanwhile. */
import { render } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Refused, takeToken, useToken } from "./api";
import { Boundary } from "./boundary";
import { CaptureButton, StopButton } from "./controls";
import { start, watch } from "./doorbell";
import { ago, count, number, percent, plain, shorten } from "./format";
import { type Answer, go, type Route, useLink, useRoute, useTheme } from "./hooks";
import { useKeys } from "./keys";
import { Link, Notice, State } from "./parts";
import { useRare } from "./rare";
import { useRun } from "./run_data";
import { useRunList } from "./run_list";
import { saver } from "./saving";
import { FindingsScreen } from "./screens/findings";
import { RunScreen } from "./screens/run";
import type { Run } from "./types";

/** The screens of a run by the part "screen" of the address; some are loaded when asked for. */
function useScreen(name: Route["screen"]): Answer<typeof RunScreen> {
  const { data, ...rest } = useRare(name === "tensor" || name === "time");
  const screens: Record<string, typeof RunScreen | undefined> = {
    findings: FindingsScreen,
    tensor: data?.TensorScreen,
    time: data?.TimeScreen,
  };
  return { ...rest, data: name && name in screens ? (screens[name] ?? null) : RunScreen };
}

function App() {
  const link = useLink();
  const route = useRoute();
  // Colours are in what screens have computed: of another theme all is made anew.
  const theme = useTheme();
  const [isHelp, setHelp] = useState(false);
  const rare = useRare(isHelp).data;
  useKeys(() => setHelp((before) => !before));
  if (link === "refused") return <Token />;
  return (
    <>
      {route.run && <OneRun key={route.run + theme} id={route.run} />}
      {!route.run && (route.screen === "compare" ? <Compared key={theme} /> : <AllRuns />)}
      {isHelp && rare && <rare.KeyHelp onClose={() => setHelp(false)} />}
    </>
  );
}

/** The server looks at no more runs for one stream. */
const MOST_WATCHED = 64;

function AllRuns() {
  const { data, error } = useRunList();
  const { data: rare, error: unread } = useRare();
  const ids =
    data?.runs
      .slice(0, MOST_WATCHED)
      .map((run) => run.id)
      .join() ?? "";
  const route = useRoute();
  useEffect(() => watch(ids ? ids.split(",") : []), [ids]);
  useEffect(() => {
    document.title = "Runs · tdbg";
    // A single run needs no list; whoever goes back to the list sees it.
    if (data?.runs.length === 1 && !route.find && !hasShownRun)
      go({ run: data.runs[0].id }, { quiet: true });
  }, [ids]);
  return (
    <>
      <TopBar />
      {data && rare ? (
        <Boundary>
          <rare.Runs list={data} />
        </Boundary>
      ) : (
        <Waiting error={error ?? unread} />
      )}
    </>
  );
}

/** Whether a run was shown before: then the list was asked for. */
let hasShownRun = false;

function Compared() {
  const route = useRoute();
  const { data: rare, error } = useRare();
  useEffect(() => watch((route.runs ?? "").split(",").filter(Boolean)), [route.runs]);
  useEffect(() => {
    document.title = "Compare · tdbg";
  }, []);
  return (
    <>
      <TopBar />
      {rare ? (
        <Boundary key={route.runs}>
          <rare.CompareScreen />
        </Boundary>
      ) : (
        <Waiting error={error} />
      )}
    </>
  );
}

function OneRun({ id }: { id: string }) {
  const route = useRoute();
  const { data: run, error, version } = useRun(id);
  useEffect(() => {
    hasShownRun = true;
    watch([id]);
  }, [id]);
  useEffect(() => {
    document.title = `${run ? shorten(run.name, 40) : "run"} · tdbg`;
  }, [run?.name]);
  const { data: Screen, error: unread } = useScreen(route.screen);
  const gone = error instanceof Refused && error.status === 404;
  return (
    <>
      <TopBar run={run} />
      {gone && (
        <Notice
          title={
            run
              ? "This run was deleted; you see its last data"
              : "This run does not exist, or no longer exists"
          }
          tone="warning"
        >
          <Link to={{}}>All runs</Link>
        </Notice>
      )}
      {run ? (
        <>
          <StateNotice run={run} />
          {Screen ? (
            <Boundary key={route.screen}>
              <Screen run={run} version={version} />
            </Boundary>
          ) : (
            <Waiting error={unread} />
          )}
        </>
      ) : (
        !gone && <Waiting error={error} />
      )}
    </>
  );
}

/** Steps that take so many times as long as usual, and this many seconds, have come to a halt. */
const HALTS = 20;
const HALT_SECONDS = 10;

/** What is special about the state of a training, and since when. */
function StateNotice({ run }: { run: Run }) {
  const [now, setNow] = useState(Date.now() / 1000);
  // The clock of the server's machine is the one that steps are timed by.
  const ahead = useMemo(() => run.now - Date.now() / 1000, [run]);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, []);
  const age = run.wall ? now + ahead - run.wall : 0;
  const since = run.wall
    ? `; the last step, ${count(run.last_step ?? 0)}, ended ${ago(age)}, at ${new Date((run.wall - ahead) * 1000).toLocaleTimeString()}`
    : "";
  const isHalted = run.rate !== null && age > Math.max(HALT_SECONDS, HALTS / run.rate);
  const said: Record<string, string | false> = {
    stalled: `The process exists but has shown no sign of life for at least 10 s${since}.`,
    dead: `The training was killed: it ended without closing its run${since}. You see what it wrote.`,
    unknown: run.steps > 0 && `tdbg cannot tell from here whether this training is alive${since}.`,
    running: isHalted && `The process is alive, but no step has ended for a while${since}.`,
  };
  const text = said[run.state];
  if (!text) return null;
  return (
    <p class={`banner ${run.state === "dead" ? "error" : "warning"}`} role="status">
      {text}
    </p>
  );
}

/** There is no answer yet: why, or that it is being read. */
function Waiting({ error }: { error: Error | null }) {
  return error ? <Failure error={error} /> : <main class="empty soft">reading …</main>;
}

function Failure({ error }: { error: Error }) {
  const isGone = !(error instanceof Refused);
  return (
    <main>
      <Notice
        title={isGone ? "The server does not answer" : "This page cannot be shown"}
        tone="error"
      >
        <p>
          {isGone ? "Start it again with tdbg ui; the page then continues." : plain(error.message)}
        </p>
      </Notice>
    </main>
  );
}

function TopBar({ run }: { run?: Run | null }) {
  const link = useLink();
  const route = useRoute();
  return (
    <>
      <header class="top">
        <Link to={{}} class="brand" aria-label="All runs">
          <svg width="22" height="22" viewBox="0 0 32 32" aria-hidden="true">
            <rect width="32" height="32" rx="8" />
            <path d="M6 20c4 0 4-9 8-9s3 11 6 11 3-6 6-6" />
          </svg>
          tdbg
        </Link>
        {run && (
          <>
            <nav aria-label="Screens">
              <Link to={{ run: run.id }} class={route.screen ? "" : "current"}>
                {shorten(run.name, 36)}
              </Link>
              <Link
                to={{ run: run.id, screen: "time" }}
                class={route.screen === "time" ? "current" : ""}
              >
                Time
              </Link>
              <Link
                to={{ run: run.id, screen: "findings" }}
                class={route.screen === "findings" ? "current" : ""}
              >
                Findings
                {run.n_findings > 0 && (
                  <i class={`badge ${run.verdict.wrong ? run.verdict.tone : ""}`}>
                    {count(run.n_findings)}
                  </i>
                )}
              </Link>
            </nav>
            <State status={run.state} stopped={run.stopped} />
            <p class="pulse">
              {run.last_step !== null && (
                <span>
                  {run.state === "running" ? (
                    <>
                      {run.step_word} <b>{count(run.last_step)}</b>
                    </>
                  ) : (
                    <b>{run.counted_steps}</b>
                  )}
                </span>
              )}
              {run.rate !== null && run.state === "running" && <span>{number(run.rate)}/s</span>}
              {run.cost.is_telling && (
                <span title="How much longer steps take because of capture">
                  cost +{percent(run.cost.share)}
                </span>
              )}
            </p>
          </>
        )}
        <span class="grow" />
        {run?.may_control && (
          <>
            <CaptureButton run={run} />
            <StopButton run={run} />
          </>
        )}
        <Lamp link={link} />
      </header>
      {link === "lost" && (
        <p class="banner error" role="alert">
          The server does not answer. You see its last answer; the page keeps trying …
        </p>
      )}
    </>
  );
}

function Lamp({ link }: { link: string }) {
  const text = { live: "live", lost: "server gone", connecting: "connecting", refused: "refused" }[
    link
  ];
  return (
    <span class={`lamp ${link}`} role="status">
      <i aria-hidden="true" />
      {text}
    </span>
  );
}

function Token() {
  const [given, setGiven] = useState("");
  return (
    <main class="token">
      <Notice title="Open the address that tdbg ui printed" tone="info">
        <p>
          This page needs the token at the end of that address. Each server has a new one. Paste the
          address, or the part after #t=.
        </p>
        <form
          onSubmit={(event) => {
            event.preventDefault();
            useToken(given.trim().replace(/^.*#t=/, ""));
            location.reload();
          }}
        >
          <label>
            <span class="hidden">Address or token</span>
            <input
              class="search"
              value={given}
              autocomplete="off"
              spellcheck={false}
              onInput={(event) => setGiven(event.currentTarget.value)}
              placeholder="http://127.0.0.1:8321/#t=…"
            />
          </label>
          <button type="submit" class="filled">
            Open
          </button>
        </form>
      </Notice>
    </main>
  );
}

takeToken();
saver.open = (drawing) => void import("./rare_screens").then((rare) => rare.openSave(drawing));
// Pasting the address again only changes the fragment, which loads nothing.
addEventListener("hashchange", () => takeToken() && location.reload());
start();
render(<App />, document.getElementById("app")!);
