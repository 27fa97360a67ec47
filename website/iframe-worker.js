// The search runs in a Worker, which browsers start from no file. In a site that is opened from a folder, a frame takes
// its place: what the theme expects of such a frame is what the package iframe-worker does.
"use strict";

if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const worker = this.frame.contentWindow;
      worker.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      worker.importScripts = async (...scripts) => {
        for (const script of scripts) await this.load(script);
      };
      this.loaded = this.load(url);
    }

    load(url) {
      const script = this.frame.contentDocument.createElement("script");
      return new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = () => reject(new Error(`cannot load ${url}`));
        script.src = url;
        this.frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
