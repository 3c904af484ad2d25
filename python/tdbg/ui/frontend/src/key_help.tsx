/** The keys and what they do, in a dialog. */
import { useEffect, useRef } from "preact/hooks";

const KEYS: [string, string][] = [
  ["g r", "all runs"],
  ["g o", "overview of the run"],
  ["g t", "where the time goes"],
  ["g f", "findings"],
  ["/", "search"],
  ["← →", "move the step cursor, in charts and the map"],
  ["↑ ↓", "choose a layer, in the map"],
  ["+ −", "unfold, fold a branch of the map"],
  ["Enter", "open what is under the cursor"],
  ["Esc", "back"],
  ["[ ]", "previous, next finding"],
  [".", "all steps, following the newest"],
  ["s", "next statistic"],
  ["?", "these keys"],
];

export function KeyHelp({ onClose }: { onClose: () => void }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => ref.current!.showModal(), []);
  return (
    <dialog ref={ref} onClose={onClose} aria-label="Keys">
      <form method="dialog">
        <h2>Keys</h2>
        <dl class="keys">
          {KEYS.map(([key, what]) => (
            <div key={key}>
              <dt>
                <kbd>{key}</kbd>
              </dt>
              <dd>{what}</dd>
            </div>
          ))}
        </dl>
        <div class="buttons">
          <button type="submit">Close</button>
        </div>
      </form>
    </dialog>
  );
}
