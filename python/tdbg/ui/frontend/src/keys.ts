/** The keyboard: every screen and every cursor without a mouse. */
import { useEffect } from "preact/hooks";
import { go, readRoute, setCursor, setter } from "./hooks";

const FIELDS = ["rms", "l2", "abs_max", "std", "mean", "zero_share"];

export function useKeys(toggleHelp: () => void): void {
  useEffect(() => {
    let isGo = false;
    const pressed = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (target.closest("input, select, textarea, dialog")) return;
      const route = readRoute();
      const wasGo = isGo;
      isGo = event.key === "g" && !wasGo;
      if (wasGo) {
        if (event.key === "r" || event.key === "l") go({}, { fresh: true });
        else if (event.key === "o" && route.run) go({ run: route.run }, { fresh: true });
        else if (event.key === "f" && route.run)
          go({ run: route.run, screen: "findings" }, { fresh: true });
        return;
      }
      switch (event.key) {
        case "?":
          return toggleHelp();
        case "/": {
          const search = document.querySelector<HTMLElement>(".search, .curves");
          if (search) event.preventDefault();
          return search?.focus();
        }
        case "Escape":
          if (route.from || route.to) go({ from: undefined, to: undefined });
          else if (route.screen && route.run) go({ run: route.run }, { fresh: true });
          else if (route.run || route.screen) go({}, { fresh: true });
          return;
        case ".":
          return go({ from: undefined, to: undefined, at: undefined });
        case "s": {
          const next = FIELDS[(FIELDS.indexOf(route.field ?? "rms") + 1) % FIELDS.length];
          return setter("field", "rms")(next);
        }
        case "[":
        case "]": {
          const flags = [...document.querySelectorAll<HTMLElement>(".flag, .note a, .tensors a")];
          if (!flags.length) return;
          const at = flags.indexOf(document.activeElement as HTMLElement);
          const by = event.key === "]" ? 1 : -1;
          return flags[(at + by + flags.length) % flags.length]?.focus();
        }
        case "ArrowLeft":
        case "ArrowRight": {
          const at = Number(route.at ?? NaN);
          if (Number.isNaN(at)) return;
          event.preventDefault();
          return setCursor(Math.max(0, at + (event.key === "ArrowRight" ? 1 : -1)));
        }
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}
