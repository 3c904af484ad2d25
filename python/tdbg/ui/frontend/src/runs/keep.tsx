/** Tags, notes, putting away and deleting: kept beside the runs, never in them. */
import { useState } from "preact/hooks";
import { post } from "../api";
import { Dialog } from "../controls";
import { bytes, counted, plain, shorten } from "../format";
import type { ListedRun } from "../types";

interface Outcome {
  id: string;
  error: string | null;
  kept?: string[];
}

interface Props {
  runs: ListedRun[];
  renew: () => void;
}

const MOST_NAMED = 5;
const MOST_NOTE = 4000;

/** Ask the server for a change of some runs, and tell what it refused. */
function useChange(renew: () => void) {
  const [refused, setRefused] = useState<string[]>([]);
  const [isBusy, setBusy] = useState(false);
  const send = async (path: string, body: object, runs: ListedRun[]): Promise<boolean> => {
    setBusy(true);
    let told: string[] = [];
    try {
      const names = new Map(runs.map((run) => [run.id, run.name]));
      const ids = runs.map((run) => run.id);
      const answer = await post<{ runs: Outcome[] }>(path, {}, { runs: ids, ...body });
      told = answer.runs.flatMap(({ id, error, kept }) => {
        const name = shorten(names.get(id) ?? id, 40);
        if (error) return [`${name}: ${plain(error)}`];
        return kept?.length ? [`${name}: deleted, but for ${kept.map(plain).join(", ")}`] : [];
      });
    } catch (failure) {
      told = [plain((failure as Error).message)];
    }
    setRefused(told);
    setBusy(false);
    renew();
    return !told.length;
  };
  return { refused, isBusy, send, clear: () => setRefused([]) };
}

function Refusals({ refused }: { refused: string[] }) {
  if (!refused.length) return null;
  return (
    <ul class="outcome bad" role="alert">
      {refused.slice(0, MOST_NAMED).map((each) => (
        <li key={each}>{each}</li>
      ))}
      {refused.length > MOST_NAMED && <li>and {refused.length - MOST_NAMED} more</li>}
    </ul>
  );
}

/** The names of some runs, as many as a dialog has room for. */
function Names({ runs }: { runs: ListedRun[] }) {
  const more = runs.length - MOST_NAMED;
  return (
    <p class="names">
      {runs.slice(0, MOST_NAMED).map((run) => (
        <code key={run.id}>{shorten(run.name, 50)}</code>
      ))}
      {more > 0 && <span class="soft">and {more} more</span>}
    </p>
  );
}

/** Words of a text, each once. */
function wordsOf(text: string): string[] {
  return [...new Set(text.split(/[\s,]+/).filter(Boolean))];
}

export function TagButton({ runs, renew }: Props) {
  const [open, setOpen] = useState<ListedRun[] | null>(null);
  return (
    <>
      <button type="button" onClick={() => setOpen(runs)}>
        Tags, note
      </button>
      {open && <TagDialog runs={open} renew={renew} onClose={() => setOpen(null)} />}
    </>
  );
}

function TagDialog({ runs, renew, onClose }: Props & { onClose: () => void }) {
  const shared = runs[0].tags.filter((tag) => runs.every((run) => run.tags.includes(tag)));
  const some = [...new Set(runs.flatMap((run) => run.tags))].filter((tag) => !shared.includes(tag));
  const note = runs.every((run) => run.note === runs[0].note) ? runs[0].note : "";
  const [tags, setTags] = useState(shared.join(" "));
  const [text, setText] = useState(note);
  const { refused, isBusy, send } = useChange(renew);
  const save = async () => {
    const words = wordsOf(tags);
    const body = {
      add_tags: words.filter((tag) => !shared.includes(tag)),
      remove_tags: shared.filter((tag) => !words.includes(tag)),
      ...(text === note ? {} : { note: text }),
    };
    if (await send("annotate", body, runs)) onClose();
  };
  return (
    <Dialog title={`Tags and note of ${counted(runs.length, "run")}`} onClose={onClose}>
      <Names runs={runs} />
      <label>
        Tags, separated by spaces
        <input
          name="tags"
          value={tags}
          autocomplete="off"
          placeholder="baseline paper"
          onInput={(event) => setTags(event.currentTarget.value)}
        />
      </label>
      {some.length > 0 && (
        <p class="soft">Some of them also have: {some.map(plain).join(", ")}. These stay.</p>
      )}
      <label>
        Note
        <textarea
          name="note"
          rows={4}
          maxLength={MOST_NOTE}
          value={text}
          placeholder={runs.length > 1 && !note ? "Each keeps its own, unless you write one" : ""}
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </label>
      <Refusals refused={refused} />
      <div class="buttons">
        <button type="submit">Cancel</button>
        <button type="button" class="filled" disabled={isBusy} onClick={() => void save()}>
          Save
        </button>
      </div>
    </Dialog>
  );
}

export function ArchiveButton({ runs, renew }: Props) {
  const { refused, isBusy, send, clear } = useChange(renew);
  const isBack = runs.every((run) => run.archived);
  return (
    <>
      <button
        type="button"
        disabled={isBusy}
        title={isBack ? "" : "Leaves them out of this list; is:archived finds them"}
        onClick={() => void send("annotate", { archived: !isBack }, runs)}
      >
        {isBack ? "Take back" : "Archive"}
      </button>
      {refused.length > 0 && (
        <Dialog title="Not all of them could be put away" onClose={clear}>
          <Refusals refused={refused} />
          <div class="buttons">
            <button type="submit">Close</button>
          </div>
        </Dialog>
      )}
    </>
  );
}

export function DeleteButton({ runs, renew }: Props) {
  const [open, setOpen] = useState<ListedRun[] | null>(null);
  return (
    <>
      <button type="button" class="stop" onClick={() => setOpen(runs)}>
        Delete
      </button>
      {open && <DeleteDialog runs={open} renew={renew} onClose={() => setOpen(null)} />}
    </>
  );
}

function DeleteDialog({ runs, renew, onClose }: Props & { onClose: () => void }) {
  const [isSure, setSure] = useState(false);
  const { refused, isBusy, send } = useChange(renew);
  const alive = runs.filter((run) => run.state === "running" || run.state === "stalled");
  const total = runs.reduce((sum, run) => sum + (run.bytes || 0), 0);
  const remove = async () => {
    if (await send("delete", { confirmed: true }, runs)) onClose();
  };
  return (
    <Dialog title={`Delete ${counted(runs.length, "run")} for good?`} onClose={onClose}>
      <Names runs={runs} />
      <p>
        This deletes what tdbg recorded, {bytes(total)}, with tags and notes. Other files in these
        directories, such as checkpoints, stay. Nothing brings the runs back.
      </p>
      {alive.length > 0 && (
        <p class="outcome">
          {counted(alive.length, "run")} of these trains now and is not deleted: stop it first.
        </p>
      )}
      <label class="check">
        <input
          type="checkbox"
          checked={isSure}
          onChange={(event) => setSure(event.currentTarget.checked)}
        />
        I do not need {runs.length > 1 ? "these runs" : "this run"} any more
      </label>
      <Refusals refused={refused} />
      <div class="buttons">
        <button type="submit">{refused.length ? "Close" : "Keep"}</button>
        <button
          type="button"
          class="stop filled"
          disabled={!isSure || isBusy}
          onClick={() => void remove()}
        >
          Delete {counted(runs.length, "run")}
        </button>
      </div>
    </Dialog>
  );
}
