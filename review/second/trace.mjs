import {simulate} from './build/test/instances/simulator.js'
import fs from 'node:fs'
const [s,inst,from,to]=process.argv.slice(2);const w=JSON.parse(fs.readFileSync(`/tmp/rv/rev2-s${s}.txt`,'utf8').split('\n').find(l=>l.startsWith('{')))
const start=10+10*(Math.max(...w.dist)+w.jitter)
const sim=await simulate({stack:w.stack,count:w.count,sources:w.sources,distance:i=>w.dist[i],isReal:w.isReal,jitter:w.jitter,seed:w.seed})
globalThis.T=0
const abs2=o=>JSON.stringify(o,(k,v)=>['at','from','until','nextAt','roomFrom','roomUntil','notBefore','token'].includes(k)&&typeof v==='number'?+(v-start).toFixed(1):k==='freeAt'?v.map(x=>+(x-start).toFixed(1)):typeof v==='number'?+v.toFixed(3):v)
const log=(...a)=>{if(T>=+from&&T<+to)console.log(T.toFixed(1),...a)}
sim.connections.forEach((c,i)=>{if(inst!=='all'&&+inst!==i)return;const st=c.store;for(const v of ['claim','lease','giveBack','admit']){const f=st[v];st[v]=q=>{const at=T;log(i,'>',v,abs2({...q,stack:q.stack?.map(x=>x.limits.name+':'+x.key),bucket:q.bucket&&q.bucket.limits.name+':'+q.bucket.key,instance:undefined}));const p=f(q);p.then(a=>log(i,'<',v,'of',at.toFixed(1),abs2(a)));return p}}})
let n=0;for(let t=0;t<+to;t+=.5){T=t;await sim.run(t);for(;n<sim.releases.length;n++)if(inst==='all'||+inst===sim.releases[n].source.instance)log('RELEASE',sim.releases[n].source.instance)}
