// Where to look next, which differs between a fleet on a machine and one on Kubernetes. The gateway
// writes which of the two it is into the page.

const HINTS = {
  local: {
    key: "antefix env prints the key of a fleet on your machine.",
    logs: "antefix logs shows why.",
    request: "Send a request, for example with antefix chat, and it appears here.",
  },
  kubernetes: {
    key: "antefix k8s key RELEASE prints a key.",
    logs: "antefix k8s status and the pods' logs show why.",
    request: "Send a request, and it appears here.",
  },
};

const { platform } = document.documentElement.dataset;

export const isLocal = platform !== "kubernetes";

export const hint = (about) => (HINTS[platform] ?? HINTS.local)[about];
