// two shared buckets only, all near
import {simulate} from './build/test/instances/simulator.js'
const L=(name,r)=>({name,rate:r/1000,capacity:Math.max(20,4*r)})
for(const rates of [[6,5],[5,10],[5,5],[60,50],[5,5,6],[1000,6,5],[6,5,1000]]) for(const n of [2,6]){
 const sim=await simulate({stack:rates.map((r,i)=>L('b'+i,r)),count:n,sources:Array.from({length:n},(_,i)=>({instance:i,keys:rates.map((r,k)=>r===1000?'c'+i:'t'+k),load:{kind:'saturated',depth:10}}))})
 const T=30000;await sim.run(T)
 const most=Math.min(...rates)*T/1000
 const by=Array.from({length:n},(_,i)=>sim.releases.filter(r=>r.source.instance===i).map(r=>r.at))
 const gap=by.map(x=>Math.max(...[...x,T].map((y,k)=>y-(k?x[k-1]:0))))
 console.log(`${rates.join('+')}/s n ${n}: ${(100*sim.releases.length/most).toFixed(0)} % by instance ${by.map(x=>x.length)}, longest gap ms ${gap.map(g=>g.toFixed(0))}`)
}
