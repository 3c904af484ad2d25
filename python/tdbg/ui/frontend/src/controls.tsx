/** What the page asks of a training: to stop, and to capture more for a while. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { getJson, post } from "./api";
import { bytes, count, number, percent, plain } from "./format";
import { useAnswer, useVersion } from "./hooks";
import type { Run } from "./types";

interface Reply {
  state: string;
  request: string | null;
  reason?: string;
  step?: number | null;
  until?: number | null;
}

const LONG_MS = 20_000;

/** Ask, and follow what becomes of it. */
function useRequest(run: string): {
  reply: Reply | null;
  error: string;
  isSlow: boolean;
  send: (path: string, body: object) => Promise<void>;
} {
  const [reply, setReply] = useState<Reply | null>(null);
  const [error, setError] = useState("");
  const [isSlow, setSlow] = useState(false);
  const version = useVersion(run);
  useEffect(() => {
    if (!reply?.request || reply.state !== "asked") return;
    const control = new AbortController();
    getJson<Reply>("answer", { run, request: reply.request }, control.signal).then(
      (found) => found.state !== "asked" && setReply({ ...found, request: reply.request }),
      () => {},
    );
    return () => control.abort();
  }, [version, reply]);
  useEffect(() => {
    setSlow(false);
    if (reply?.state !== "asked") return;
    const timer = setTimeout(() => setSlow(true), LONG_MS);
    return () => clearTimeout(timer);
  }, [reply]);
  const send = async (path: string, body: object) => {
    setError("");
    try {
      setReply(await post<Reply>(path, { run }, body));
    } catch (failure) {
      setError((failure as Error).message);
    }
  };
  return { reply, error, isSlow, send };
}

export function Dialog({
  title,
  onClose,
  children,
}: {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    ref.current!.showModal();
  }, []);
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: Escape closes a dialog by itself
    <dialog
      ref={ref}
      onClose={onClose}
      aria-label={title}
      onClick={(event) => event.target === ref.current && event.currentTarget.close()}
    >
      <form method="dialog">
        <h2>{title}</h2>
        {children}
      </form>
    </dialog>
  );
}

const REPLIES: Record<string, string> = {
  stopped: "The training has stopped.",
  ended: "The training had already ended.",
  asked: "Asked. Waiting for the training …",
  accepted: "Accepted: the training captures it",
  refused: "The training refused",
};

function Outcome({
  reply,
  error,
  isSlow,
}: {
  reply: Reply | null;
  error: string;
  isSlow: boolean;
}) {
  if (!reply && !error) return null;
  const text = reply ? (REPLIES[reply.state] ?? reply.state) : "";
  const at =
    reply?.state === "accepted" && reply.until ? `, until step ${count(reply.until)}.` : "";
  const why = reply?.state === "refused" && reply.reason ? `: ${plain(reply.reason)}` : "";
  return (
    <p
      class={`outcome ${error || reply?.state === "refused" ? "bad" : (reply?.state ?? "")}`}
      role="status"
    >
      {error ? plain(error) : text + at + why}
      {isSlow &&
        " It has not answered yet. With TDBG_NO_STOP=1, a training never stops on request."}
    </p>
  );
}

/** There while the training runs; the dialog stays until it is closed, to say what came of it. */
export function StopButton({ run }: { run: Run }) {
  const [isOpen, setOpen] = useState(false);
  const [reason, setReason] = useState("");
  const { reply, error, isSlow, send } = useRequest(run.id);
  const worst = run.findings.find((each) => !each.over);
  return (
    <>
      {run.state === "running" && (
        <button
          type="button"
          class="stop"
          onClick={() => {
            setOpen(true);
            setReason(worst ? `${worst.rule} in ${worst.tensor}` : "");
          }}
        >
          Stop
        </button>
      )}
      {isOpen && (
        <Dialog title="Stop this training?" onClose={() => setOpen(false)}>
          <p>
            The training ends at its next forward, all ranks at the same step. Its captured data and
            its checkpoints stay.
          </p>
          <label>
            Why, in one sentence
            <input
              name="reason"
              maxLength={400}
              value={reason}
              onInput={(event) => setReason(event.currentTarget.value)}
              placeholder="recorded with the run"
            />
          </label>
          <Outcome reply={reply} error={error} isSlow={isSlow} />
          <div class="buttons">
            <button type="submit">{reply ? "Close" : "Keep training"}</button>
            {!reply && (
              <button
                type="button"
                class="stop filled"
                onClick={() => void send("stop", { reason })}
              >
                Stop the training
              </button>
            )}
          </div>
        </Dialog>
      )}
    </>
  );
}

/** What a request would cost, before it is made. */
function Cost({
  run,
  body,
}: {
  run: Run;
  body: { collections?: string[]; regex?: string[]; interval: number; steps: number; raw: boolean };
}) {
  const { collections, regex, interval, steps, raw } = body;
  const { data, error } = useAnswer<Estimated>(
    `estimate ${run.id} ${JSON.stringify(body)}`,
    0,
    (signal) =>
      getJson(
        "estimate",
        { run: run.id, collection: collections, regex, interval, steps, raw: String(raw) },
        signal,
      ),
  );
  if (error) return <p class="cost bad">{plain(error.message)}</p>;
  if (!data) return <p class="cost soft">…</p>;
  const { tensors, seconds, share } = data;
  return (
    <p class="cost soft" role="status">
      {!tensors
        ? "The cost is not known: nothing of that kind has been recorded so far."
        : `About ${count(tensors)} tensor${tensors > 1 ? "s" : ""}, at most ${bytes(data.bytes)} on disk${seconds === null ? "" : `; a captured step takes about ${number(seconds * 1000)} ms${share === null ? "" : ` (${percent(share)})`} longer${raw ? ", and the time that copying values takes" : ""}`}.`}
    </p>
  );
}

interface Estimated {
  tensors: number;
  bytes: number;
  seconds: number | null;
  share: number | null;
}

const WHAT = {
  gradients: "gradients",
  weights: "weights",
  biases: "biases",
  outputs: "outputs of layers",
  inputs: "inputs of layers",
  losses: "losses",
};

export function CaptureButton({
  run,
  tensor,
  label = "Capture now",
}: {
  run: Run;
  tensor?: string;
  label?: string;
}) {
  const [isOpen, setOpen] = useState(false);
  const [what, setWhat] = useState("gradients");
  const [pattern, setPattern] = useState("");
  const [steps, setSteps] = useState(50);
  const [interval, setInterval] = useState(1);
  const [raw, setRaw] = useState(false);
  const { reply, error, isSlow, send } = useRequest(run.id);
  const escaped = tensor ? `^${tensor.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$` : pattern;
  const body = {
    ...(escaped ? { regex: [escaped] } : { collections: [what] }),
    interval,
    steps,
    raw,
  };
  return (
    <>
      {run.state === "running" && (
        <button type="button" onClick={() => setOpen(true)}>
          {label}
        </button>
      )}
      {isOpen && (
        <Dialog title="Capture more, for a while" onClose={() => setOpen(false)}>
          {tensor ? (
            <p>
              <code>{plain(tensor)}</code>
            </p>
          ) : (
            <div class="fields">
              <label>
                What
                <select
                  value={what}
                  disabled={pattern !== ""}
                  onChange={(event) => setWhat(event.currentTarget.value)}
                >
                  {Object.entries(WHAT).map(([value, text]) => (
                    <option key={value} value={value}>
                      {text}
                    </option>
                  ))}
                </select>
              </label>
              <label>
                or names that this expression finds
                <input
                  value={pattern}
                  maxLength={256}
                  placeholder="attention.*weight"
                  onInput={(event) => setPattern(event.currentTarget.value)}
                />
              </label>
            </div>
          )}
          <div class="fields">
            <label>
              Every … steps
              <input
                type="number"
                min={1}
                value={interval}
                onInput={(event) =>
                  setInterval(Math.max(1, event.currentTarget.valueAsNumber || 1))
                }
              />
            </label>
            <label>
              For … steps
              <input
                type="number"
                min={1}
                value={steps}
                onInput={(event) => setSteps(Math.max(1, event.currentTarget.valueAsNumber || 1))}
              />
            </label>
          </div>
          <label class="check">
            <input
              type="checkbox"
              checked={raw}
              onChange={(event) => setRaw(event.currentTarget.checked)}
            />
            values as well, not statistics only: costs disk and time
          </label>
          {!reply && <Cost run={run} body={body} />}
          <Outcome reply={reply} error={error} isSlow={isSlow} />
          <div class="buttons">
            <button type="submit">{reply ? "Close" : "Cancel"}</button>
            {!(reply && reply.state !== "refused") && (
              <button type="button" class="filled" onClick={() => void send("capture", body)}>
                Capture
              </button>
            )}
          </div>
        </Dialog>
      )}
    </>
  );
}
