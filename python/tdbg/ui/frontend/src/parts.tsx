/** Small parts of screens. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { isDark, themed } from "./colors";
import { count, exact, plain, shorten } from "./format";
import { go, href, type Route, setter, useSize, useTheme } from "./hooks";
import type { Limit } from "./line_chart";
import type { Field, Finding, Severity, Spark, Tone } from "./types";

/** A severity by its shape, and by its colour for who sees it. */
export function Mark({ tone, size = 16 }: { tone: Tone; size?: number }) {
  const shapes: Record<Tone, ComponentChildren> = {
    error: <path d="M3 3h10v10H3z" />,
    warning: <path d="M8 2.2 14.4 13.4H1.6z" />,
    info: <circle cx="8" cy="8" r="5.6" />,
    ok: <path class="stroke" d="m3 8.4 3.4 3.4L13.2 5" />,
    unjudged: <circle class="stroke" cx="8" cy="8" r="5.4" />,
    starting: <circle class="stroke dashed" cx="8" cy="8" r="5.4" />,
  };
  const label = {
    ok: "nothing is wrong",
    unjudged: "not judged",
    starting: "starting",
    error: "error",
    warning: "warning",
    info: "information",
  }[tone];
  return (
    <svg
      class={`mark ${tone}`}
      width={size}
      height={size}
      viewBox="0 0 16 16"
      role="img"
      aria-label={label}
    >
      {shapes[tone]}
    </svg>
  );
}

const STATES: Record<string, [string, string]> = {
  running: ["running", "go"],
  stalled: ["stalled", "warning"],
  closed: ["finished", "calm"],
  dead: ["killed", "error"],
  unknown: ["state unknown", "warning"],
  unreadable: ["unreadable", "error"],
};

export function State({ status, stopped }: { status: string; stopped?: string | null }) {
  const [text, tone] =
    stopped && status === "closed" ? ["stopped", "warning"] : (STATES[status] ?? [status, "calm"]);
  return <span class={`state ${tone}`}>{text}</span>;
}

/** A link whose target is a state of this page; other tabs can have it, too. */
export function Link({
  to,
  children,
  ...more
}: {
  to: Route;
  children: ComponentChildren;
  class?: string;
  title?: string;
  "aria-label"?: string;
}) {
  return (
    <a
      href={href(to)}
      {...more}
      onClick={(event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        go(to, { fresh: true });
        scrollTo(0, 0);
      }}
    >
      {children}
    </a>
  );
}

export function Chips<T extends string>({
  label,
  options,
  value,
  onChange,
  names,
}: {
  label: string;
  options: readonly T[];
  value: T;
  onChange: (value: T) => void;
  names?: Partial<Record<T, string>>;
}) {
  return (
    // biome-ignore lint/a11y/useSemanticElements: a fieldset of buttons has a frame of its own
    <div class="chips" role="group" aria-label={label}>
      {options.map((each) => (
        <button
          key={each}
          type="button"
          aria-pressed={each === value}
          onClick={() => onChange(each)}
        >
          {names?.[each] ?? each}
        </button>
      ))}
    </div>
  );
}

/** A table that scrolls sideways, by the keyboard too. */
export function Scroll({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable
    <section class="scroll" tabIndex={0} aria-label={label}>
      {children}
    </section>
  );
}

/** There is no answer yet: why, or that it is being read. */
export function Pending({ error }: { error?: Error | null }) {
  return error ? <p class="bad">{plain(error.message)}</p> : <p class="soft">reading …</p>;
}

export function AxisChips({ isLog }: { isLog: boolean }) {
  return (
    <Chips
      label="Axis"
      options={["linear", "log"] as const}
      value={isLog ? "log" : "linear"}
      onChange={setter("axis")}
    />
  );
}

/** One of many: each option by its text, or by its shortened self. */
export function Select({
  label,
  options,
  value,
  onChange,
  names,
  class: name,
}: {
  label: string;
  options: readonly string[];
  value: string;
  onChange: (value: string) => void;
  names?: Record<string, string>;
  class?: string;
}) {
  return (
    <select
      class={name}
      aria-label={label}
      value={value}
      onChange={(event) => onChange(event.currentTarget.value)}
    >
      {options.map((each) => (
        <option key={each} value={each}>
          {names?.[each] ?? shorten(each, 44)}
        </option>
      ))}
    </select>
  );
}

/** Which colour is which line. */
export function LineKeys({ lines }: { lines: { label: string; color: string }[] }) {
  return (
    <>
      {lines.map((line) => (
        <span key={line.label} class="key">
          <i style={{ background: line.color }} />
          {line.label}
        </span>
      ))}
    </>
  );
}

export function Card({
  title,
  aside,
  children,
  class: name,
}: {
  title?: ComponentChildren;
  aside?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
}) {
  return (
    <section class={`card ${name ?? ""}`}>
      {title && (
        <header>
          <h2>{title}</h2>
          {aside}
        </header>
      )}
      {children}
    </section>
  );
}

/** The course of a loss in a line of text: low to high of each column, and what is no number. */
export function Sparkline({ spark, label }: { spark: Spark | null; label: string }) {
  const [host, size] = useSize();
  const ref = useRef<HTMLCanvasElement>(null);
  const theme = useTheme();
  useEffect(() => {
    const canvas = ref.current!;
    const ratio = devicePixelRatio || 1;
    canvas.width = size.width * ratio;
    canvas.height = size.height * ratio;
    const ctx = canvas.getContext("2d")!;
    ctx.clearRect(0, 0, canvas.width, canvas.height);
    if (!spark?.mean.length) return;
    const values = [...spark.low, ...spark.high].filter((v): v is number => v !== null);
    // As on a chart: of what is far apart, a linear axis would show the greatest alone.
    const isLog = Math.min(...values) > 0 && Math.max(...values) > 50 * Math.min(...values);
    const place = isLog ? Math.log : (value: number) => value;
    const low = place(Math.min(...values));
    const high = place(Math.max(...values));
    const n = spark.mean.length;
    const y = (v: number) =>
      canvas.height -
      3 * ratio -
      ((place(v) - low) / (high - low || 1)) * (canvas.height - 9 * ratio);
    const x = (j: number) => ((j + 0.5) / n) * canvas.width;
    ctx.lineJoin = "round";
    ctx.fillStyle = isDark() ? "rgba(86,180,233,.28)" : "rgba(0,114,178,.2)";
    for (let j = 0; j < n; j++) {
      const [a, b] = [spark.low[j], spark.high[j]];
      if (a !== null && b !== null)
        ctx.fillRect((j / n) * canvas.width, y(b), canvas.width / n, Math.max(ratio, y(a) - y(b)));
    }
    ctx.strokeStyle = themed("line");
    ctx.lineWidth = 1.5 * ratio;
    ctx.beginPath();
    let isDown = false;
    spark.mean.forEach((v, j) => {
      if (v === null) return;
      if (isDown) ctx.lineTo(x(j), y(v));
      else ctx.moveTo(x(j), y(v));
      isDown = true;
    });
    ctx.stroke();
    ctx.fillStyle = "#cc79a7";
    spark.bad.forEach((bad, j) => {
      if (bad)
        ctx.fillRect((j / n) * canvas.width, 0, Math.max(2 * ratio, canvas.width / n), 4 * ratio);
    });
  }, [spark, size.width, size.height, theme]);
  return (
    <div class="spark" ref={host} role="img" aria-label={label}>
      <canvas ref={ref} />
    </div>
  );
}

/** Findings of one rule with one severity belong together: thirty layers are one thing. */
export interface Group {
  rule: string;
  severity: Severity;
  over: boolean;
  findings: Finding[];
  first: number;
  last: number;
}

export function groups(findings: Finding[]): Group[] {
  const found = new Map<string, Group>();
  for (const each of findings) {
    const key = `${each.rule} ${each.severity} ${each.over}`;
    const group = found.get(key);
    if (group) {
      group.findings.push(each);
      group.first = Math.min(group.first, each.first_step);
      group.last = Math.max(group.last, each.last_step);
    } else
      found.set(key, {
        rule: each.rule,
        severity: each.severity,
        over: each.over,
        findings: [each],
        first: each.first_step,
        last: each.last_step,
      });
  }
  return [...found.values()];
}

export function tensorsText(group: Group): string {
  const n = new Set(group.findings.map((each) => each.tensor)).size;
  return n === 1 ? "1 tensor" : `${count(n)} tensors`;
}

/** Where to look at a finding: its tensor, or the time, a fifth of its length around it. */
export function placeOf(run: string, finding: Finding, last: number | null): Route {
  const margin = Math.max(10, Math.round((finding.last_step - finding.first_step) * 0.2));
  const steps = {
    from: String(Math.max(0, finding.first_step - margin)),
    to: String(Math.min(finding.last_step + margin, last ?? finding.last_step) + 1),
    at: String(finding.first_step),
  };
  if (finding.of_time) return { run, screen: "time", ...steps };
  return {
    run,
    screen: "tensor",
    tensor: finding.tensor,
    ...steps,
    field: fieldOf(finding) === "rms" ? undefined : fieldOf(finding),
  };
}

/** Which statistic shows a finding: that which its rule judged, or the magnitude. */
export function fieldOf(finding: Finding): Field {
  const told = finding.evidence?.statistic;
  return told && told !== "abs_mean" ? (told as Field) : "rms";
}

/** Thresholds of findings on the axis of a statistic, each once. */
export function limitsOf(findings: Finding[], field: Field): Limit[] {
  const found = new Map<number, Limit>();
  for (const { evidence } of findings)
    if (
      evidence &&
      evidence.limit !== null &&
      (evidence.statistic === field || (evidence.statistic === "abs_mean" && field === "rms"))
    )
      found.set(evidence.limit, {
        value: evidence.limit,
        label: `threshold ${exact(evidence.limit)}${evidence.statistic === field ? "" : " of mean |x|"}`,
      });
  return [...found.values()].slice(0, 3);
}

/** What a rule measured, and what it compared that with. */
export function Measured({ finding }: { finding: Finding }) {
  if (finding.value === null) return null;
  return (
    <span class="soft measure">
      measured <em>{exact(finding.value)}</em>
      {finding.threshold !== null && (
        <>
          , threshold <em>{exact(finding.threshold)}</em>
        </>
      )}
    </span>
  );
}

export function Notice({
  title,
  children,
  tone = "info",
}: {
  title: string;
  children?: ComponentChildren;
  tone?: Tone;
}) {
  return (
    <div class="notice" role="status">
      <Mark tone={tone} size={22} />
      <div>
        <h2>{title}</h2>
        {children}
      </div>
    </div>
  );
}
