/** The keyboard: every screen and every cursor without a mouse. */
import { useEffect } from "preact/hooks";
import { go, type Route, readRoute, setCursor, setter } from "./hooks";

const FIELDS = ["rms", "l2", "abs_max", "std", "mean", "zero_share"];

type Action = (route: Route, event: KeyboardEvent) => void;

const toRuns: Action = () => go({}, { fresh: true });

/** What follows "g". */
const PLACES: Record<string, Action> = {
  r: toRuns,
  l: toRuns,
  o: ({ run }) => run && go({ run }, { fresh: true }),
  t: ({ run }) => run && go({ run, screen: "time" }, { fresh: true }),
  f: ({ run }) => run && go({ run, screen: "findings" }, { fresh: true }),
};

const KEYS: Record<string, Action> = {
  "/": (_, event) => {
    const search = document.querySelector<HTMLElement>(".search, .curves");
    if (search) event.preventDefault();
    search?.focus();
  },
  Escape: ({ from, to, screen, run }) => {
    if (from || to) go({ from: undefined, to: undefined });
    else if (screen || run) go(screen && run ? { run } : {}, { fresh: true });
  },
  ".": () => go({ from: undefined, to: undefined, at: undefined }),
  s: ({ field = "rms" }) =>
    setter("field", "rms")(FIELDS[(FIELDS.indexOf(field) + 1) % FIELDS.length]),
  "[": () => focusNext(-1),
  "]": () => focusNext(1),
  ArrowLeft: (route, event) => moveCursor(route, event, -1),
  ArrowRight: (route, event) => moveCursor(route, event, 1),
};

function focusNext(by: number): void {
  const flags = [...document.querySelectorAll<HTMLElement>(".flag, .note a, .tensors a")];
  if (!flags.length) return;
  const at = flags.indexOf(document.activeElement as HTMLElement);
  flags[(at + by + flags.length) % flags.length]?.focus();
}

function moveCursor({ at }: Route, event: KeyboardEvent, by: number): void {
  const step = Number(at ?? NaN);
  if (Number.isNaN(step)) return;
  event.preventDefault();
  setCursor(Math.max(0, step + by));
}

export function useKeys(toggleHelp: () => void): void {
  useEffect(() => {
    let isGo = false;
    const pressed = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if ((event.target as HTMLElement).closest("input, select, textarea, dialog")) return;
      const keys = isGo ? PLACES : KEYS;
      isGo = !isGo && event.key === "g";
      if (event.key === "?" && keys === KEYS) toggleHelp();
      else if (Object.hasOwn(keys, event.key)) keys[event.key](readRoute(), event);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}
