/** The axis of steps with every finding as a flag; a stretch of it is the range of all charts. */
import { useRef, useState } from "preact/hooks";
import { gutterOf, RIGHT, ticks } from "./canvas";
import { Crosshair, point } from "./crosshair";
import { count, plain, steps as stepsText } from "./format";
import { useSize } from "./hooks";
import { type Group, groups, Mark, tensorsText } from "./parts";
import type { Change, Finding } from "./types";

interface Props {
  first: number;
  /** The step after the newest. */
  end: number;
  from: number;
  to: number;
  findings: Finding[];
  changes: Change[];
  onRange: (from: number, to: number) => void;
  onReset: () => void;
  onFinding: (group: Group) => void;
}

export function Timeline(props: Props) {
  const { first, end, from, to } = props;
  const [host, size] = useSize();
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);
  const track = useRef<SVGSVGElement>(null);
  const left = gutterOf(size.width);
  const width = Math.max(1, size.width - left - RIGHT);
  const x = (step: number) => left + ((step - first) / Math.max(1, end - first)) * width;
  const stepAt = (event: PointerEvent) => {
    const rect = track.current!.getBoundingClientRect();
    return Math.max(
      first,
      Math.min(end, first + ((event.clientX - rect.left - left) / width) * (end - first)),
    );
  };
  const isWhole = from <= first && to >= end;
  const flags = byRule(props.findings);
  const places = placesOf(flags, x, size.width);
  const depth = Math.max(1, ...places.map((place) => place.lane + 1));
  return (
    <div class="timeline" ref={host}>
      <div class="flags" style={{ height: flags.length ? `${depth * 26 + 2}px` : "0" }}>
        {flags.map((group, i) => {
          const { left, right, lane, isLeftward } = places[i];
          return (
            <button
              type="button"
              key={`${group.rule}${group.severity}${group.over}`}
              class={`flag ${group.severity}${group.over ? " over" : ""}${isLeftward ? " leftward" : ""}`}
              style={{
                top: `${lane * 26}px`,
                ...(isLeftward ? { right: `${size.width - right}px` } : { left: `${left}px` }),
              }}
              title={`${plain(group.rule)}: ${tensorsText(group)}, ${stepsText(group.first, group.last)}`}
              onClick={() => props.onFinding(group)}
            >
              <Mark tone={group.severity} size={11} />
              {plain(group.rule)}
              {group.findings.length > 1 && <i>×{count(group.findings.length)}</i>}
            </button>
          );
        })}
      </div>
      <svg
        ref={track}
        width={size.width}
        height={34}
        role="img"
        aria-label={`Steps ${count(first)} to ${count(Math.max(first, end - 1))}, ${isWhole ? "all shown" : `${count(from)} to ${count(to - 1)} shown`}. Drag to choose a range.`}
        onPointerDown={(event) => {
          track.current!.setPointerCapture(event.pointerId);
          const at = stepAt(event);
          setDrag({ from: at, to: at });
        }}
        onPointerMove={(event) => {
          if (drag) setDrag({ ...drag, to: stepAt(event) });
          point(Math.floor(stepAt(event)));
        }}
        onPointerLeave={() => point(undefined)}
        onPointerUp={() => {
          if (!drag) return;
          const [a, b] = [drag.from, drag.to].sort((p, q) => p - q);
          setDrag(null);
          if (x(b) - x(a) > 5)
            props.onRange(Math.floor(a), Math.max(Math.floor(a) + 1, Math.ceil(b)));
        }}
        onDblClick={props.onReset}
      >
        <rect class="track" x={left} y="4" width={width} height="8" rx="4" />
        {!isWhole && (
          <rect
            class="range"
            x={x(from)}
            y="2"
            width={Math.max(3, x(to) - x(from))}
            height="12"
            rx="4"
          />
        )}
        {[...props.findings].sort(bySeverity).map((each) => (
          <rect
            key={`${each.rule}${each.tensor}${each.first_step}`}
            class={`stretch ${each.severity}`}
            x={x(each.first_step)}
            y="5"
            height="6"
            width={Math.max(3, x(each.over ? each.last_step + 1 : end) - x(each.first_step))}
          />
        ))}
        {props.changes.map((each) => (
          <path key={each.request} class="change" d={`M${x(each.step)} 0v16`} />
        ))}
        {drag && (
          <rect
            class="drag"
            x={x(Math.min(drag.from, drag.to))}
            y="0"
            width={Math.abs(x(drag.to) - x(drag.from))}
            height="16"
          />
        )}
        {ticks(first, end, width).map((step) => (
          <text
            key={step}
            x={x(step + 0.5)}
            y="29"
            text-anchor={x(step) > size.width - 30 ? "end" : "middle"}
          >
            {count(step)}
          </text>
        ))}
      </svg>
      <Crosshair from={first} to={end} left={left} width={width} />
    </div>
  );
}

const MOST_LANES = 7;
const GRAVITY = { info: 0, warning: 1, error: 2 };

/** The gravest last, so that it is drawn above the others. */
function bySeverity(a: Finding, b: Finding): number {
  return GRAVITY[a.severity] - GRAVITY[b.severity];
}

/** One flag a rule, where it began first; thirty layers in the same steps are one flag. */
function byRule(findings: Finding[]): Group[] {
  return groups(findings)
    .sort((a, b) => a.first - b.first)
    .slice(0, 40);
}

/** About how wide the flag is, in pixels. */
function widthOf(group: Group): number {
  return 58 + group.rule.length * 7.4;
}

interface Place {
  left: number;
  right: number;
  lane: number;
  isLeftward: boolean;
}

/** Flags stand at their step, the mast left or, near the end, right; one above the other where they would overlap. */
function placesOf(flags: Group[], x: (step: number) => number, width: number): Place[] {
  const taken: Place[] = [];
  for (const group of flags) {
    const at = x(group.first);
    const wide = widthOf(group);
    const isLeftward = at + wide > width;
    const left = isLeftward ? Math.max(0, at - wide) : at;
    const right = left + wide;
    let lane = 0;
    while (
      lane < MOST_LANES - 1 &&
      taken.some((each) => each.lane === lane && each.left < right && left < each.right)
    )
      lane++;
    taken.push({ left, right, lane, isLeftward });
  }
  return taken;
}
