/** Where a fault of a screen ends: it is shown once, and the rest of the page goes on. */
import { Component, type ComponentChildren } from "preact";
import { plain } from "./format";
import { Notice } from "./parts";

interface State {
  error: Error | null;
}

/**
 * Without it, a screen that fails is tried again at each ring of the doorbell, and nothing says
 * why it is empty.  Give it a key of what is shown: something else gets a new one.
 */
export class Boundary extends Component<{ children: ComponentChildren }, State> {
  state: State = { error: null };

  static getDerivedStateFromError(error: Error): State {
    return { error };
  }

  componentDidCatch(error: Error): void {
    console.error(error);
  }

  render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    return (
      <main class="failed">
        <Notice title="This screen cannot be shown" tone="error">
          <p>
            It failed with: <code>{plain(String(error.message || error))}</code>
          </p>
          <p class="soft">The other screens still work. The training is not affected.</p>
          <button type="button" onClick={() => this.setState({ error: null })}>
            Try again
          </button>
        </Notice>
      </main>
    );
  }
}
